"""NCCL Inspector: the operations of jobs, read from the files that it writes."""
