"""commwatch: watches the communication between the GPUs of a node."""

__version__ = "0.2.0"
