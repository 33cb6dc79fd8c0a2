"""NCCL settings of processes: read, and judged against the node that they run on."""
