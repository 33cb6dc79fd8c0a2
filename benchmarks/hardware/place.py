"""The machine that a section runs on, and how a section reports what it has found."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pynvml

if TYPE_CHECKING:
    from commwatch_rehearsal.simulation.plug import Node

ROOT = Path(__file__).parents[2]
Fact: TypeAlias = "float | int | str | bool | list[str] | dict[str, int] | None"
Facts: TypeAlias = Mapping[str, Fact]
"""By name, which ends in the unit where there is one."""
REASON = "cannot_run"
"""The fact that a section reports in place of others."""


class CannotRun(Exception):
    """A section cannot run on this machine; the text is the reason."""


def report(**facts: Fact) -> None:
    """Add facts to the section's results: they are kept, whatever happens to the section afterwards."""
    print(json.dumps(facts), flush=True)


@dataclass(frozen=True)
class Place:
    """A machine with a GPU, or a simulated one."""

    out: Path
    """Folder of the results."""
    preset: str = ""
    """Of a simulated node; empty: this machine."""
    pace: float = 1.0
    """Times each duration is this long; less than 1 shows that the sections run, and measures little."""
    torch_python: str = ""
    """Interpreter that has torch; empty: ours, if it has it."""
    started_at: float = 0.0
    """When the simulated node booted, seconds since 1970."""

    @property
    def node_arguments(self) -> list[str]:
        """Arguments that name the node to a command of commwatch."""
        return ["--simulate", self.preset] if self.preset else []

    @cached_property
    def node(self) -> Node | None:
        """The simulated node, its driver beneath this process; None on a real one."""
        if not self.preset:
            return None
        from commwatch.config.simulated import SimulationPlan
        from commwatch_rehearsal.simulation import plug

        node = plug.make_node(SimulationPlan(self.preset, "", self.started_at or time.time() - 3600, "", ""))
        plug.install_driver(node)
        return node

    @cached_property
    def trees(self) -> tuple[Path, Path]:
        """The roots of ``/sys`` and ``/proc``."""
        if self.node is None:
            return Path("/sys"), Path("/proc")
        sysfs, procfs = self.out / "simulated" / "sys", self.out / "simulated" / "proc"
        for root in (sysfs, procfs):
            root.mkdir(parents=True, exist_ok=True)
        self.node.write_sysfs(sysfs)
        self.node.write_procfs(procfs)
        return sysfs, procfs

    def open_driver(self) -> list[Any]:  # Any: handles of the binding, which has no types
        """Initialise NVML; the handles of the GPUs.

        Raises:
            CannotRun: there is no driver, or it lists no GPU.
        """
        self.node  # noqa: B018 - installs the simulated driver
        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            raise CannotRun(f"no NVIDIA driver that can be opened: {error}") from error
        if not handles:
            raise CannotRun("the NVIDIA driver lists no GPU")
        return handles


def answer(function: Any, *arguments: Any) -> tuple[Any, str]:
    """Result of a call of the driver, and its error as text; empty if it succeeded."""
    try:
        return function(*arguments), ""
    except pynvml.NVMLError as error:
        return None, str(error)


def text_of(value: str | bytes) -> str:
    """A text of the binding, which older versions give as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def python_path() -> list[str]:
    """Folders from which this checkout is imported."""
    return [str(ROOT), str(ROOT / "daemon"), str(ROOT / "exporters")]


def commwatch(*arguments: str) -> list[str]:
    """Command line of a command of this checkout."""
    return [sys.executable, "-m", "commwatch", *arguments]
