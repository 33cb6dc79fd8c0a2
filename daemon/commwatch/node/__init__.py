"""The current state of the node: inventory, PCIe tree, topology, and trackers that turn readings into values."""
