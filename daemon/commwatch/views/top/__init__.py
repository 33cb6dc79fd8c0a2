"""commwatch top: a node's state live in a terminal."""
