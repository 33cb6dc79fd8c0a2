"""What a training step takes over more GPUs and nodes: volumes, bounds, memory, layout; pure."""
