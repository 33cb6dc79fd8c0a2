"""Reads what sysfs and the kernel log say of this node, once; run as a child, since a broken device may block it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from commwatch.findings.kernel_facts import KernelFact, PortState, kernel_facts
from commwatch.readings import HardwareEvent, SourceUnavailable
from commwatch.sources import files
from commwatch.sources.base import Source
from commwatch.sources.kernel_log import KernelLogDevice, KernelLogSource, LogDevice
from commwatch.sources.pci.source import PciSource
from commwatch.sources.rdma.attributes import parse_code
from commwatch.sources.rdma.places import places
from commwatch.workers.one_shot import NoAnswer, ask, clean_environment
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value

SOURCES = ("pci", "kernel_log", "rdma")
"""What may be read, by the names of the configuration."""
_KERNEL_LOG_RUNS = 20
"""A run reads 20,000 records, and one at the end of the log next to nothing; the usual log has some thousand."""


class KernelLook(msgspec.Struct, frozen=True):
    """What was read, and what was not."""

    facts: tuple[KernelFact, ...]
    """What may be wrong, most severe first."""
    unread: tuple[str, ...]
    """What could not be read and why."""


async def ask_kernel(sysfs: Path, procfs: Path, sources: Iterable[str], deadline: float) -> KernelLook:
    """Look in a child process, which is left behind where it does not end.

    Args:
        sysfs: usually ``/sys``.
        procfs: usually ``/proc``.
        sources: of ``SOURCES``.
        deadline: seconds.
    """
    command = (sys.executable, "-m", "commwatch.diagnosis.health.kernel", str(sysfs), str(procfs), *sources)
    try:
        answer = await ask(command, clean_environment(os.environ, "PYTHONPATH", "PYTHONHOME"), deadline)
    except NoAnswer as error:
        return KernelLook((), (f"sysfs and the kernel log: {error}",))
    try:
        return msgspec.json.decode(answer.output, type=KernelLook)
    except ValueError:
        return KernelLook((), (f"sysfs and the kernel log: {answer.last_error}",))


def look(
    sysfs: Path, procfs: Path, sources: Iterable[str], open_log: Callable[[], LogDevice] = KernelLogDevice
) -> KernelLook:
    """Read everything once.

    Args:
        sysfs: usually ``/sys``.
        procfs: usually ``/proc``.
        sources: of ``SOURCES``.
        open_log: opens the kernel log at its beginning.
    """
    wanted = frozenset(sources)
    unread: list[str] = []
    values: dict[Series, Value] = {}
    events: list[HardwareEvent] = []
    ports: list[PortState] = []
    if "pci" in wanted:
        _read(PciSource(sysfs), ("pci", "aer"), values, events, unread)
    if "kernel_log" in wanted:
        _read(KernelLogSource(open_log, procfs), ("kernel_log",) * _KERNEL_LOG_RUNS, values, events, unread)
    if "rdma" in wanted:
        ports += _ports(sysfs, unread)
    node = Node(Snapshot([Block(Layout(values), tuple(values.values()), 0.0)]))
    return KernelLook(tuple(kernel_facts(node, ports, events)), tuple(unread))


def _read(
    source: Source, collectors: Sequence[str], values: dict[Series, Value], events: list[HardwareEvent],
    unread: list[str],
) -> None:  # fmt: skip
    """Run collectors one after another."""
    try:
        source.open(lambda _device: None, frozenset(), None)
        for collector in collectors:
            batch = source.collect(collector)
            for reading in batch.readings:
                values.update(zip(reading.series, reading.values, strict=True))
            events += batch.events
            unread += [absence.detail for absence in batch.absences]
    except SourceUnavailable as error:
        unread.append(error.detail)
    finally:
        source.close()


def _ports(sysfs: Path, unread: list[str]) -> Iterable[PortState]:
    """The state of every RDMA port; no counter is read."""
    try:
        found = places(str(sysfs / "class" / "infiniband"))
    except FileNotFoundError:
        return  # a node without RDMA
    except OSError as error:
        unread.append(f"RDMA ports: {error.strerror}")
        return
    for place in found.values():
        codes = []
        for name in ("state", "phys_state"):
            try:
                codes.append(parse_code(files.read(f"{place.path}/{name}")))
            except OSError as error:
                unread.append(f"{place.path}/{name}: {error.strerror}")
                codes.append(None)
        yield PortState(f"{place.device} port {place.port}", codes[0], codes[1])


def main(arguments: Sequence[str]) -> int:
    """``SYSFS PROCFS SOURCE...``; prints a ``KernelLook`` as JSON."""
    sysfs, procfs, *sources = arguments
    sys.stdout.write(msgspec.json.encode(look(Path(sysfs), Path(procfs), sources)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
