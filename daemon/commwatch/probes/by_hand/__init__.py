"""Probes that a person starts: without a daemon, and their answer."""
