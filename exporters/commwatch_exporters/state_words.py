"""What the codes of states mean, in one word each."""

from __future__ import annotations

from typing import Final

GPU_STATES: Final = {0: "ok", 1: "not answering", 2: "lost", 3: "reset required", 4: "missing"}


RDMA_STATES: Final = {0: "no change", 1: "down", 2: "initialising", 3: "armed", 4: "active", 5: "deferred"}
