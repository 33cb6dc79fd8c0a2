"""Whether a probe may run: idle GPUs, schedulers, budget, holds."""
