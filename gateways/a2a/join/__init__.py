"""`aghctl a2a join`: works of one daemon as tasks of an A2A agent."""
