"""Statistics that drivers of network adapters keep themselves, as ``ethtool -S`` shows them."""

from commwatch.sources.ethtool.source import EthtoolSource

__all__ = ["EthtoolSource"]
