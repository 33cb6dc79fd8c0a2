"""Reads sysfs and the kernel log of this node, once; run as a child, since a broken device may block it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from commwatch.children import clean_environment, own_module
from commwatch.readings import Absence, Batch, DeviceReadings, SourceUnavailable
from commwatch.sources import files
from commwatch.sources.base import Source
from commwatch.sources.kernel_log import KernelLogDevice, KernelLogSource, LogDevice
from commwatch.sources.pci.source import PciSource
from commwatch.sources.rdma.attributes import parse_code
from commwatch.sources.rdma.places import places
from commwatch.workers.one_shot import NoAnswer, ask
from commwatch_exporters.node.model import RdmaPort

SOURCES = ("pci", "kernel_log", "rdma")
"""The sources that may be read, by their names in the configuration."""
_KERNEL_LOG_RUNS = 20
"""A run reads 20,000 records, and one at the end of the log next to nothing; the usual log has some thousand."""


async def ask_kernel(
    sysfs: Path, procfs: Path, sources: Iterable[str], deadline: float, exclude: Iterable[str] = ()
) -> Batch:
    """Look in a child process, which is left behind where it does not end.

    Args:
        sources: of ``SOURCES``.
        deadline: seconds.
        exclude: see ``RdmaSection``.
    """
    command = own_module("commwatch.diagnosis.health.kernel", str(sysfs), str(procfs), ",".join(sources), *exclude)
    try:
        answer = await ask(command, clean_environment(os.environ), deadline)
    except NoAnswer as error:
        return _silent(str(error))
    try:
        return msgspec.json.decode(answer.output, type=Batch)
    except ValueError:
        return _silent(answer.last_error)


def _silent(why: str) -> Batch:
    return Batch(absences=[Absence("", "unreadable", f"sysfs and the kernel log: {why}")])


def read_kernel(
    sysfs: Path,
    procfs: Path,
    sources: Iterable[str],
    open_log: Callable[[], LogDevice] = KernelLogDevice,
    exclude: Sequence[str] = (),
) -> Batch:
    """Read everything once; what cannot be read is absent.

    Args:
        sources: of ``SOURCES``.
        exclude: see ``RdmaSection``.
    """
    wanted, batch = frozenset(sources), Batch()
    if "pci" in wanted:
        _collect(PciSource(sysfs), ("pci", "aer"), batch)
    if "kernel_log" in wanted:
        _collect(KernelLogSource(open_log, procfs), ("kernel_log",) * _KERNEL_LOG_RUNS, batch)
    if "rdma" in wanted:
        _read_ports(sysfs, exclude, batch)
    return batch


def _collect(source: Source, collectors: Sequence[str], into: Batch) -> None:
    """Run collectors one after another."""
    try:
        source.open(lambda _device: None, frozenset(), None)
        for collector in collectors:
            batch = source.collect(collector)
            into.readings += batch.readings
            into.events += batch.events
            into.absences += batch.absences
    except SourceUnavailable as error:
        into.absences.append(Absence("", error.reason, error.detail))
    finally:
        source.close()


def _read_ports(sysfs: Path, exclude: Sequence[str], into: Batch) -> None:
    """The state of every RDMA port; no counter is read."""
    try:
        found = places(str(sysfs / "class" / "infiniband"), exclude)
    except FileNotFoundError:
        return  # a node without RDMA
    except OSError as error:
        into.absences.append(Absence("", files.reason_of(error), f"RDMA ports: {error.strerror}"))
        return
    for place in found.values():
        codes = []
        for name in ("state", "phys_state"):
            try:
                codes.append(parse_code(files.read(f"{place.path}/{name}")))
            except OSError as error:
                detail = f"{place.path}/{name}: {error.strerror}"
                into.absences.append(Absence(place.key, files.reason_of(error), detail))
                codes.append(None)
        labels = (place.device, place.port)
        series = ((RdmaPort.state.metric, labels), (RdmaPort.physical_state.metric, labels))
        into.readings.append(DeviceReadings(place.key, time.monotonic(), series, codes))


def main(arguments: Sequence[str]) -> int:
    """``SYSFS PROCFS SOURCE,... EXCLUDED...``; prints a ``Batch`` as JSON."""
    sysfs, procfs, sources, *exclude = arguments
    batch = read_kernel(Path(sysfs), Path(procfs), sources.split(","), exclude=exclude)
    sys.stdout.write(msgspec.json.encode(batch).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
