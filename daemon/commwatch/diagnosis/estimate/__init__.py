"""What a training step takes over more GPUs and nodes: a request, the model that it is put to, the answer."""
