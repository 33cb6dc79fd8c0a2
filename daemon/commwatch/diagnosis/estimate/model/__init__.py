"""What a training step takes on a layout: volumes, bounds, memory, strategies, and the layout to choose; pure."""
