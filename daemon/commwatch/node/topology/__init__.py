"""GPUs, NICs, switches, NUMA nodes and the paths between them."""
