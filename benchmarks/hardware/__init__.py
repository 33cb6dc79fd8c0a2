"""``make hardware``: what a machine with an NVIDIA GPU shows in eight minutes, without a network."""
