"""RDMA ports, InfiniBand and RoCE: ``/sys/class/infiniband``."""
