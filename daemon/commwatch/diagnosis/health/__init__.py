"""The health check: one evaluation of the node, with or without a daemon, and its answer."""
