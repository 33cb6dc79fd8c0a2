"""Statistics that drivers of network adapters keep themselves, as ``ethtool -S`` shows them."""
