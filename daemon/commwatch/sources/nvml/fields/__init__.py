"""The counters that are read from NVML: one row each; a new counter is a row here and one in the catalogue."""

from __future__ import annotations

from typing import Final

from commwatch.sources.nvml.fields import fabric, gpu, nvlink, pcie
from commwatch.sources.nvml.fields.row import Counter

COUNTERS: Final[tuple[Counter, ...]] = (*nvlink.ROWS, *pcie.ROWS, *gpu.ROWS, *fabric.ROWS)
"""Where several rows give one metric, the first that the GPU supports is read."""
