"""Dumps of PyTorch's Flight Recorder: which collective a job waits in, and for which ranks."""
