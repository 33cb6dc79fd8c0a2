"""What is wrong on this node, where, since when, and why: findings over the metrics, pure."""
