"""``make hardware`` measures in eight minutes, without a network, all that a machine with an NVIDIA GPU can show."""
