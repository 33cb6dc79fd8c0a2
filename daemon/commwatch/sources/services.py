"""Whether the services that the NVIDIA driver needs are alive, and whether adapters can reach its memory: ``/proc``."""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from commwatch.readings import Absence, Batch, DeviceReadings, SourceUnavailable
from commwatch.sources import files
from commwatch.sources.base import Origin, Report, Source
from commwatch.sources.gpudirect import WAYS, read_gpudirect
from commwatch.sources.pci_attributes import endpoint_role
from commwatch_exporters.snapshot import Series, Value

_RUNS_UNTIL_FULL_SCAN = 20
"""Only new processes are read in between. A reused process number is found by the full scan at the latest."""
_KERNEL_THREADS = "2"
"""The kernel starts kthreadd as process 2: where it is not seen, neither are the node's other processes."""


@dataclass(frozen=True, slots=True)
class _Service:
    name: str
    """Its name in the label, and of its systemd unit."""
    program: str
    """The last part of the command's first word. Its first 15 characters are the name of the process."""
    is_of_root: bool = False
    """Whether it runs as root alone: any user can call a process so. The others can have a user of their own."""

    @property
    def comm(self) -> bytes:
        return self.program.encode()[:15] + b"\n"


_FABRIC_MANAGER = _Service("nvidia-fabricmanager", "nv-fabricmanager")
_PERSISTENCED = _Service("nvidia-persistenced", "nvidia-persistenced")
_IMEX, _NVLSM = (_Service(name, name, is_of_root=True) for name in ("nvidia-imex", "nvlsm"))
_SERVICES = (_FABRIC_MANAGER, _PERSISTENCED, _IMEX, _NVLSM)
_CONFIGURATION = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
"""Of the fabric manager, where its command line names no other."""
_MODE = re.compile(rb"^FABRIC_MODE=([0-2])\s*$", re.MULTILINE)
_CONFIGURATION_BYTES = 64 * 1024
_BY_COMM = {service.comm: service for service in _SERVICES}
SERVICE_COMMANDS = frozenset(
    name for service in _SERVICES for name in (service.program, service.comm.decode().rstrip("\n"))
)
"""Names of programs and of processes that are services of the driver, and say nothing of who uses the node."""


class ServicesSource(Source):
    """Reads which of the driver's services run.

    A service that does not run is reported only where it matters: the fabric manager where NVSwitches are on the PCI
    bus, the persistence daemon where the driver is loaded, and each that this worker has seen running. Where the driver
    is loaded, its kernel modules that give GPU memory to network adapters are reported as well.
    """

    collectors = ("services",)

    def __init__(self, sysfs: Path, procfs: Path) -> None:
        super().__init__()
        self._sysfs = str(sysfs)
        self._devices = f"{sysfs}/bus/pci/devices"
        self._procfs = str(procfs)
        self._running: dict[_Service, str] = {}
        self._seen: set[_Service] = set()
        self._fabric_mode: int | None = None
        """Of the fabric manager that was seen last; None where its configuration could not be read."""
        self._before: frozenset[str] = frozenset()
        """The processes of the run before."""
        self._new: frozenset[str] = frozenset()
        """Those of them that were new then: they may have been on their way from fork to exec."""
        self._runs_left = 0
        """Until the next full scan."""
        self._addresses: list[str] | None = None
        self._nvswitches: list[str] = []
        """Their folders in sysfs."""

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """See ``Source.open``; the devices of this source are the services."""
        super().open(report, leave_out, only)
        self._runs_left = 0

    def collect(self, collector: str) -> Batch:
        """Look at the process table once; see ``Source.collect``."""
        batch = Batch()
        now = time.monotonic()
        self._find_processes(self._processes(), batch)
        self._report("")
        shown = self._shown({absence.device for absence in batch.absences})
        found: dict[Series, Value] = {
            ("commwatch_service_running", (one.name,)): int(one in self._running) for one in shown
        }
        if _FABRIC_MANAGER in shown and self._fabric_mode is not None:
            found["commwatch_service_fabric_mode", (_FABRIC_MANAGER.name,)] = self._fabric_mode
        for way, is_there in self._ways_of_adapters().items():
            found["commwatch_gpudirect_rdma_available", (way,)] = is_there
        if found:
            batch.readings.append(DeviceReadings("", now, tuple(found), tuple(found.values())))
        return batch

    def _processes(self) -> frozenset[str]:
        try:
            names = frozenset(filter(str.isdecimal, os.listdir(self._procfs)))
        except OSError as error:
            raise SourceUnavailable(files.reason_of(error), f"{self._procfs}: {error.strerror}") from error
        if not node_processes_visible(Path(self._procfs)):
            detail = f"the processes of this node do not show in {self._procfs}: other PID namespace, or hidepid"
            raise SourceUnavailable("no_permission", detail)
        return names

    def _ways_of_adapters(self) -> dict[str, int]:
        """Whether network adapters can reach GPU memory, by way; what is not known is left out."""
        known = read_gpudirect(self._sysfs, self._procfs)
        if known.dma_buf is None:
            return {}
        return {way: int(flag) for way, flag in zip(WAYS, known, strict=True) if flag is not None}

    def _find_processes(self, processes: frozenset[str], batch: Batch) -> None:
        for service, process in tuple(self._running.items()):
            if process not in processes or not self._runs(process, service, batch):
                del self._running[service]
        candidates = (processes - self._before) | (self._new & processes)
        if self._runs_left == 0:
            candidates, self._runs_left = processes, _RUNS_UNTIL_FULL_SCAN
        self._runs_left -= 1
        for process in candidates:
            comm = files.read_if_there(f"{self._procfs}/{process}/comm")
            named = _BY_COMM.get(comm) if comm is not None else None
            if named is not None and named not in self._running and self._runs(process, named, batch):
                self._running[named] = process
                if named is _FABRIC_MANAGER:
                    self._fabric_mode = self._read_fabric_mode(process)
        self._seen.update(self._running)
        self._new, self._before = processes - self._before, processes

    def _runs(self, process: str, service: _Service, batch: Batch) -> bool:
        """Whether a process is of a service: its name is, and so is the program of its command line.

        A process that has ended and was not yet waited for keeps its name, but has no command line.
        """
        if not self._may_touch(service.name):
            return False
        # The command line lies in the process's own memory, and waits for whoever holds that.
        self._report(service.name)
        try:
            if service.is_of_root:
                users = files.parse_users(files.read(f"{self._procfs}/{process}/status"))
                if users is None or users.effective != 0:
                    return False
            comm = files.read(f"{self._procfs}/{process}/comm")
            command = files.read(f"{self._procfs}/{process}/cmdline")
        except (FileNotFoundError, ProcessLookupError):
            return False
        except OSError as error:
            detail = f"process {process}: {error.strerror}"
            batch.absences.append(Absence(service.name, files.reason_of(error), detail))
            return False
        program = command.partition(b"\0")[0].rpartition(b"/")[2]
        return comm == service.comm and program == service.program.encode()

    def _read_fabric_mode(self, process: str) -> int | None:
        """The mode in the configuration that a fabric manager has read; None where it cannot be read.

        Another user than root sees only the own root folder, which is that of a service of the host. Any user can call
        a process so and name any file: one that others can write says nothing.
        """
        words = (files.read_if_there(f"{self._procfs}/{process}/cmdline") or b"").decode(errors="replace").split("\0")
        path = next((path for option, path in pairwise(words) if option in ("-c", "--config")), _CONFIGURATION)
        roots = [f"{self._procfs}/{process}/root", *([""] if self._procfs == "/proc" else [])]
        for text in (_read_trusted(f"{root}{path}") for root in roots):
            if text is not None:
                match = _MODE.search(text)
                return int(match[1]) if match else 0
        return None

    def _shown(self, unknown: set[str]) -> list[_Service]:
        due = set(self._seen)
        if self._nvswitch_on_bus():
            due.add(_FABRIC_MANAGER)
        if os.path.exists(f"{self._procfs}/driver/nvidia/version"):
            due.add(_PERSISTENCED)
        return [
            one for one in _SERVICES if one in due and self._may_touch(one.name)
            and (one in self._running or one.name not in unknown)
        ]  # fmt: skip

    def _nvswitch_on_bus(self) -> bool:
        """Whether there is an NVSwitch that no virtual machine has, as by vfio-pci; devices are read only when their
        list changes."""
        try:
            addresses = sorted(os.listdir(self._devices))
        except OSError:
            return False
        if addresses != self._addresses:
            self._addresses = addresses
            folders = (f"{self._devices}/{address}" for address in addresses)
            self._nvswitches = [folder for folder in folders if self._is_nvswitch(folder)]
        drivers = (files.link_name(f"{folder}/driver") for folder in self._nvswitches)
        return any(not driver or driver.startswith("nvidia") for driver in drivers)

    def _is_nvswitch(self, base: str) -> bool:
        words = (files.parse_word(files.read_if_there(f"{base}/{name}") or b"") for name in ("class", "vendor"))
        return endpoint_role(*words) == "nvswitch"


def _read_trusted(path: str) -> bytes | None:
    """The beginning of a regular file of root or our own user; None of any other, which is not opened."""
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(found)
        is_ours = status.st_uid in (0, os.geteuid()) and not status.st_mode & stat.S_IWOTH
        if not (stat.S_ISREG(status.st_mode) and is_ours):
            return None
        with open(f"/proc/self/fd/{found}", "rb") as file:
            return file.read(_CONFIGURATION_BYTES)
    except OSError:
        return None
    finally:
        os.close(found)


def node_processes_visible(procfs: Path) -> bool:
    """Whether the process table shows the node's processes, and not those of a container or of one user alone."""
    return files.read_if_there(f"{procfs}/{_KERNEL_THREADS}/comm") == b"kthreadd\n"


def make_source(origin: Origin) -> ServicesSource:
    return ServicesSource(origin.sysfs, origin.procfs)
