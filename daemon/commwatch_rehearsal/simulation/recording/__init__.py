"""Recordings of real nodes: what the kernel and the driver answered to the readers, written to a file and replayed."""
