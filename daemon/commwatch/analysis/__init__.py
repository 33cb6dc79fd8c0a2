"""Analysis: pure functions from readings to values; no I/O and no clock of their own."""
