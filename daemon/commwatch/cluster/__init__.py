"""Between nodes: who measures with whom, and which part of the network is slow."""
