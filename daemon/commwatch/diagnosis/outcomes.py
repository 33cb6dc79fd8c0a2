"""Why a probe of a full scan has no result; pure."""

from __future__ import annotations

from commwatch.probes.plan import CycleResult, Measured, Skipped, Yielded

OWN_FAILURES = frozenset({"start", "internal"})
"""Reasons of failures that come before any GPU is touched: a lock or a process of ours, and no fault of the node."""


def why_not(result: CycleResult) -> str:
    """Why there is no result, as a sentence begins: ``Skipped: gpu_busy: GPU1 has a process``."""
    if isinstance(result, Measured):
        return "Several ranks share a GPU: times say nothing"
    word = "Skipped" if isinstance(result, Skipped) else "Gave way" if isinstance(result, Yielded) else "Could not run"
    return f"{word}: {result.reason}: {result.detail}"
