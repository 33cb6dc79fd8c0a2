"""The health check: one look at the node, with or without a daemon, and its answer."""
