"""RDMA ports, InfiniBand and RoCE: ``/sys/class/infiniband``."""

from commwatch.sources.rdma.source import RdmaSource

__all__ = ("RdmaSource",)
