"""Stand-in for the NVIDIA driver in C, so that the cost of commwatch is measured without that of the simulation."""
