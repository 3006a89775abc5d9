"""What both programs need of the machine: paths, locks, key files, command line and help, standard streams, version."""
