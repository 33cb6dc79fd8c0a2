"""NCCL Inspector: what its files show of the communication of jobs."""
