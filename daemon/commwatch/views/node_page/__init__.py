"""The node's page at ``/``: one small HTML page without scripts, made from the snapshot and what the daemon adds."""
