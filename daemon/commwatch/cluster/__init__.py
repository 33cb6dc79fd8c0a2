"""Between nodes: one member a node, started by the scheduler that is there; daemons never talk to each other."""
