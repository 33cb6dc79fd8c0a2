"""What is written into alerts/, grafana/ and docs/; nothing of it is imported by the daemon."""
