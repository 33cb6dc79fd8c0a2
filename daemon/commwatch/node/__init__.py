"""The node as it stands now: inventory, PCIe tree, topology, and trackers that turn readings into values."""
