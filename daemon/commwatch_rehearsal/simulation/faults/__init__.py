"""Faults of a simulated node, with place and time: kinds of fault, and the file that names them."""
