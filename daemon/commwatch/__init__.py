"""commwatch: watches the communication between the GPUs of a node."""

__version__ = "0.1.0"
