"""Findings over the metrics: the fault, its component, its start and its causes; pure."""
