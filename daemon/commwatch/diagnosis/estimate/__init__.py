"""Estimates the time of a training step over more GPUs and nodes: the request, the model, and the answer."""
