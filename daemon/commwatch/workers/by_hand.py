"""Reads the topology of this machine, or of a simulated one; whatever may hang is read in a child with a deadline."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from commwatch.caller import temporary_folder
from commwatch.children import clean_environment, own_module
from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan
from commwatch.errors import CommwatchError
from commwatch.node.run import Collected
from commwatch.node.topology.build import build_topology
from commwatch.node.topology.model import Topology
from commwatch.node.topology.nvlink import COLLECTORS, DriverFacts, driver_facts
from commwatch.node.topology.sysfs import SysfsFacts
from commwatch.readings import Absence, SourceUnavailable
from commwatch.rehearsal import rehearsal
from commwatch.state.directory import state_path
from commwatch.workers.one_shot import NoAnswer, ask
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.sources import SOURCES
from commwatch.workers.start import start_python
from commwatch_exporters.node.model import Node, NvLink
from commwatch_exporters.snapshot import Block, Snapshot

if TYPE_CHECKING:
    from commwatch.jobs.settings.node_network import NodeNetwork

SYSFS_DEADLINE_SECONDS = 10.0
_Facts = TypeVar("_Facts")
_TRIES = 3
"""Runs of a collector: each may find one more GPU that does not answer, and two may hang."""


def read_topology(config: Config) -> tuple[Topology, tuple[str, ...]]:
    """The topology of the machine that the configuration names, and what could not be read.

    A driver that is missing or hangs leaves NVLink unknown; the PCIe tree is there all the same. Blocks.

    Raises:
        CommwatchError: sysfs gives no answer, or there is no such simulated node.
    """
    with simulated_files(config) as simulation:
        sysfs, driver = asyncio.run(_read(config, simulation))
    if sysfs.problems and not sysfs.devices and not driver.gpus:
        raise CommwatchError("; ".join(sysfs.problems))
    return build_topology(sysfs, driver), (*sysfs.problems, *driver.problems)


@contextmanager
def simulated_files(config: Config) -> Iterator[SimulationPlan | None]:
    """The files of the simulated node in a folder that is gone afterwards; None for the real machine.

    It is the node of the daemon that has this state directory, under the faults that are named here; without one it
    boots now.

    Raises:
        CommwatchError: there is no such simulated node.
    """
    if not config.simulation.preset:
        yield None
        return
    from commwatch.state.simulation_start import booted_at

    started_at = booted_at(state_path(config)) or time.time()
    with tempfile.TemporaryDirectory(prefix="commwatch-topology-", dir=temporary_folder()) as folder:
        plan = SimulationPlan.of(config.simulation, started_at, Path(folder))
        Path(plan.procfs).mkdir()
        rehearsal().make_node(plan).write_sysfs(Path(plan.sysfs))
        yield plan


async def _read(config: Config, simulation: SimulationPlan | None) -> tuple[SysfsFacts, DriverFacts]:
    sysfs, procfs = config.paths.sysfs, config.paths.procfs
    if simulation is not None:
        sysfs, procfs = simulation.sysfs, simulation.procfs
    return await asyncio.gather(ask_sysfs(sysfs, procfs, SYSFS_DEADLINE_SECONDS), read_driver(config, simulation))


async def ask_sysfs(sysfs: str, procfs: str, deadline: float) -> SysfsFacts:
    """Read sysfs in a child: the file of a device that is off its bus may keep its reader waiting.

    Raises:
        CommwatchError: no answer in time, or none that makes sense.
    """
    return await _ask("commwatch.node.topology", SysfsFacts, sysfs, procfs, deadline)


async def ask_network(sysfs: str, procfs: str, deadline: float) -> NodeNetwork:
    """Read interfaces and RDMA ports in a child: the firmware of an adapter may keep its reader waiting.

    Raises:
        CommwatchError: no answer in time, or none that makes sense.
    """
    from commwatch.jobs.settings.node_network import (
        NodeNetwork,  # the daemon, which needs none of it, imports this module
    )

    return await _ask("commwatch.jobs.settings.node_network", NodeNetwork, sysfs, procfs, deadline)


async def _ask(module: str, kind: type[_Facts], sysfs: str, procfs: str, deadline: float) -> _Facts:
    """The JSON output of a module that runs in its own process; that gets no signal, as it may hang in the kernel."""
    try:
        answer = await ask(own_module(module, sysfs, procfs), clean_environment(os.environ), deadline, spare=True)
        return msgspec.json.decode(answer.output, type=kind)
    except NoAnswer as error:
        raise CommwatchError(f"{sysfs}: {error}; look at dmesg for the PCI bus") from error
    except (ValueError, RecursionError) as error:
        raise CommwatchError(f"{sysfs} could not be read: exit code {answer.code}") from error


def nvml_reader(config: Config, simulation: SimulationPlan | None) -> Reader:
    """A reader of the driver for a command, with the deadlines of the configuration; starts nothing yet."""
    settings = ReaderSettings.of(
        config,
        [SOURCES["nvml"]],
        simulation,
        opt_in=[NvLink.speed_bytes_per_second.metric],
        launch=partial(start_python, quiet=True),
    )
    return Reader(settings)


async def read_driver(config: Config, simulation: SimulationPlan | None) -> DriverFacts:
    """GPUs and NVLinks as NVML gives them, read in a worker process with the deadlines of the configuration.

    A GPU that does not answer is left out by a second process; a driver that does not answer is a note.
    """
    if not config.sources.nvml.enabled:
        return DriverFacts(note="sources.nvml is disabled in the configuration")
    reader = nvml_reader(config, simulation)
    blocks: list[Block] = []
    problems: dict[str, str] = {}
    try:
        for collector in COLLECTORS:
            collected, absences = await collect_patiently(reader, collector)
            blocks += collected.blocks.values()
            problems.update({one.device: f"{one.device or 'driver'}: {one.reason}: {one.detail}" for one in absences})
    except SourceUnavailable as error:
        return DriverFacts(note=f"{error.reason}: {error.detail}")
    finally:
        await reader.stop()
    facts = driver_facts(Node(Snapshot(blocks)), problems.values())
    if not facts.gpus and problems:
        return DriverFacts(note="; ".join(problems.values()))
    return facts


async def collect_patiently(reader: Reader, collector: str) -> tuple[Collected, list[Absence]]:
    """Run a collector until nothing new hangs; the last run, and what was absent in any of them.

    Raises:
        SourceUnavailable: the driver cannot be read at all.
    """
    absences: dict[str, Absence] = {}
    for _ in range(_TRIES):
        collected = await reader.now(collector)
        if collected.unavailable is not None:
            raise collected.unavailable
        absences.update({one.device: one for one in collected.absences})
        if collected.blocks or not any(one.reason == "deadline" for one in collected.absences):
            break
    return collected, list(absences.values())
