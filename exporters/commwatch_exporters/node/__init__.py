"""The node in types, as a snapshot shows it."""
