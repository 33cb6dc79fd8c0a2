"""Probes: what is measured, on which ranks, and when it may run."""
