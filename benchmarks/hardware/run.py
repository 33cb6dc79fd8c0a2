"""Sections as child processes: each has a deadline, and what it had reported before it hung or crashed is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hardware.place import REASON, ROOT, python_path

from commwatch.workers.process_state import uninterruptible

MOST_USED_MEBIBYTES = 1024
"""Of a free GPU: processes of another container are not listed, but their memory is counted."""
_LEFT_ALONE = "it sits in the kernel and is left alone"
_ASKED_SECONDS, _KILLED_SECONDS = 5.0, 2.0
"""That a section over its deadline has to end its children, and to be gone."""


@dataclass(frozen=True)
class Section:
    """A part of the run, in a process of its own."""

    name: str
    function: str
    """``module:name``, which takes a ``Place``."""
    seconds: float
    """Its deadline."""
    uses_gpu: bool = False
    """It makes a context, and so runs only where no process computes on a GPU."""
    needs_torch: bool = False
    """It runs NCCL."""


@dataclass(frozen=True)
class Outcome:
    """The result of a section."""

    facts: Mapping[str, Any]
    reason: str = ""
    """Why it gave no facts, or not all; empty: it ran."""
    seconds: float = 0.0
    crashed: bool = False
    """It crashed or hung."""
    left_alone: bool = False
    """It sits in the kernel."""


def why_not(section: Section, facts: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> str:
    """The known reason why a section cannot run; empty if there is none.

    Args:
        section: which one.
        facts: all that were found so far.
        outcomes: of the sections so far, by name; that of the driver is the first.
    """
    if outcomes and "gpus" not in facts:
        return next(iter(outcomes.values())).reason
    if section.uses_gpu and facts.get("compute_processes"):
        return f"{facts['compute_processes']} processes compute on the GPUs; run it on a free node"
    if section.uses_gpu and (facts.get("stuck_ranks") or any(one.left_alone for one in outcomes.values())):
        return "an earlier section sits in the kernel"
    if section.uses_gpu and facts.get("memory_used_mebibytes", 0) > MOST_USED_MEBIBYTES:
        return f"{facts['memory_used_mebibytes']:.0f} MiB of a GPU are in use; run it on a free node"
    if section.uses_gpu and facts.get("mig"):
        return "the GPU is divided (MIG)"
    return outcomes["torch"].reason if section.needs_torch else ""


def run_child(name: str, command: Sequence[str], limit: float, out: Path) -> Outcome:
    """Run a section and wait for its end.

    Args:
        name: of the section; its facts go into ``NAME.jsonl``, its standard error into ``NAME.log``.
        command: its command line.
        limit: its deadline, seconds.
        out: folder of the results.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path()), "PYTHONUNBUFFERED": "1"}
    facts_file, log_file = out / f"{name}.jsonl", out / f"{name}.log"
    began = time.monotonic()
    with facts_file.open("wb") as lines, log_file.open("wb") as log:
        # Into files: nothing that a section leaves behind can keep us waiting for the end of a pipe.
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=lines, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        late = _wait(process, limit)
    seconds = time.monotonic() - began
    facts: dict[str, Any] = {}
    for line in facts_file.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            facts |= json.loads(line)
    reason = str(facts.pop(REASON, ""))
    if late:
        reason = f"no end within {limit:.3g} s; {late}"
        return Outcome(facts, reason, seconds, crashed=True, left_alone=late == _LEFT_ALONE)
    if process.returncode:
        last = [line for line in log_file.read_text(errors="replace").splitlines() if line.strip()][-1:]
        return Outcome(facts, f"ended with {process.returncode}: {' '.join(last)}", seconds, crashed=True)
    return Outcome(facts, reason, seconds)


def _wait(process: subprocess.Popen[bytes], limit: float) -> str:
    """Wait for a process, and end it when it is late; empty if it ended by itself."""
    try:
        process.wait(limit)
        return ""
    except subprocess.TimeoutExpired:
        if uninterruptible(Path("/proc"), process.pid):
            return _LEFT_ALONE  # one that was killed inside the driver has frozen GPUs
    for number, patience in ((signal.SIGTERM, _ASKED_SECONDS), (signal.SIGKILL, _KILLED_SECONDS)):
        os.killpg(process.pid, number)
        try:
            process.wait(patience)
            return "it was ended"
        except subprocess.TimeoutExpired:
            continue
    return _LEFT_ALONE
