"""Which Python runs the ranks: the daemon's own, or one of the site's that has torch (``probes.python``)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from commwatch.children import own_module
from commwatch.probes.rank_plan import INSTALL_TORCH, Backend

WITH_TORCH: tuple[Backend, ...] = ("nccl", "gloo")
"""Backends whose ranks import torch; others run on the daemon's own interpreter."""


def rank_command() -> Sequence[str]:
    """Command line of a rank on the daemon's own interpreter."""
    return own_module("commwatch.probes.cycle.rank")


def command_elsewhere(python: str) -> Sequence[str]:
    """Command line of a rank on another interpreter."""
    return (python, str(Path(__file__).with_name("rank_elsewhere.py")))


def nursery_command(python: str) -> Sequence[str]:
    """Command line of the process from which ranks are forked.

    Args:
        python: ``probes.python``; empty: our own interpreter.
    """
    if python:
        return (*command_elsewhere(python), "nursery")
    return own_module("commwatch.probes.cycle.nursery")


def why_no_torch(python: str) -> str:
    """What is known to keep ranks from importing torch, and the cure; empty without.

    Args:
        python: ``probes.python``; whether torch is there, only a rank on it can say.
    """
    if not python:
        return "" if importlib.util.find_spec("torch") is not None else f"torch is not installed; {INSTALL_TORCH}"
    if not os.path.isfile(python):
        return f"probes.python: there is no {python}"
    return "" if os.access(python, os.X_OK) else f"probes.python: {python} may not be executed by this user"
