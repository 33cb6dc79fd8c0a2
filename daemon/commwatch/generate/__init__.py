"""Generates alerts/, grafana/ and parts of docs/; the daemon imports nothing of it."""
