"""What both programs need of the machine: paths, locks, key files, files of agents, command line, standard streams, version."""
