"""The NCCL settings of processes: ``/proc/PID/environ`` and the nccl.conf files that NCCL finds there.

Blocks: a file may lie on a file server that is gone, and ``environ`` waits for the memory of the process. So this is
for a worker process or a command, never for the daemon's event loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from commwatch.jobs.settings.conf_file import ConfFile, effective_settings, parse_conf_file
from commwatch.jobs.settings.facts import Origin, ProcessSettings, Setting
from commwatch.jobs.settings.launcher import LAUNCHER_NAMES, launched
from commwatch.jobs.settings.names import kept_name, secret_name
from commwatch.jobs.settings.process_facts import home_of, interfaces, link, nccl_version, user_id
from commwatch.jobs.settings.records import UnreadProcess
from commwatch.jobs.settings.rooted_files import RootedFiles, open_directory
from commwatch.jobs.settings.variables import KnownVariables
from commwatch.sources import files
from commwatch.sources.services import node_processes_visible

_ENVIRONMENT_BYTES = 4 * 2**20
"""Longer than any environment that the kernel takes with the usual limit of the stack (a quarter of 8 MiB)."""
_FILE_BYTES = 64 * 1024
_TOO_LONG = "longer than 64 KiB, the rest"
_SYSTEM_FILE = "/etc/nccl.conf"

MOST_SETTINGS = 512
"""Of one process that are kept; NCCL, torch and CUDA know fewer."""

UnreadReason: TypeAlias = Literal[
    "no_permission", "hidden", "overwritten", "too_long", "unreadable", "no_answer", "not_reached"
]
"""hidden: this process table does not show the node's processes. overwritten: the process wrote its title over its
environment, or has none. too_long: its environment, or the number of its settings. no_answer: a look at it took too
long. not_reached: there was no time left."""


@dataclass(frozen=True, slots=True)
class SettingsReading:
    """What was read of some processes; those that ended meanwhile are in neither."""

    processes: tuple[ProcessSettings, ...]
    unread: tuple[UnreadProcess, ...]


class _NotRead(Exception):
    def __init__(self, reason: UnreadReason) -> None:
        super().__init__(reason)
        self.reason: UnreadReason = reason


def read_process_settings(
    pids: Iterable[int],
    known: KnownVariables,
    procfs: Path = Path("/proc"),
    begin: Callable[[int], bool] = lambda pid: True,
) -> SettingsReading:
    """Read the settings of processes. Of all other variables nothing is kept, not even in memory.

    ``environ`` shows what a process was started with; what it set itself later does not show.

    Args:
        pids: of processes, such as those on a GPU.
        known: all names.
        procfs: usually ``/proc``.
        begin: called with each process before it is touched; where it says no, this one is not reached.
    """
    read, unread = [], []
    buffer = bytearray(_ENVIRONMENT_BYTES + 1)
    own_namespace = link(f"{procfs}/self/ns/net")
    for pid in sorted(set(pids)):
        if not begin(pid):
            unread.append(UnreadProcess(pid, "not_reached"))
            continue
        try:
            with _opened(procfs / str(pid)) as folder:
                read.append(_read_process(pid, folder, known, buffer, own_namespace))
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            if not node_processes_visible(procfs):  # else it has ended
                unread.append(UnreadProcess(pid, "hidden"))
        except OSError as error:
            denied = files.reason_of(error) == "no_permission"
            unread.append(UnreadProcess(pid, "no_permission" if denied else "unreadable"))
        except _NotRead as refused:
            unread.append(UnreadProcess(pid, refused.reason))
    return SettingsReading(tuple(read), tuple(unread))


def settings_of_environment(
    environment: Mapping[str, str], known: KnownVariables, root: Path = Path("/")
) -> ProcessSettings:
    """The settings that a program would find if it were started with an environment.

    Args:
        environment: such as ``os.environ``.
        known: all names.
        root: where ``/etc/nccl.conf`` is looked for.
    """
    kept = {name: value for name, value in environment.items() if kept_name(name) or name in LAUNCHER_NAMES}
    with _opened(root) as folder:
        start = None
        with suppress(OSError):
            start = open_directory(".")
        try:
            found = RootedFiles(folder, start)
            return _settings(None, kept, known, found, environment.get("HOME", ""))
        finally:
            if start is not None:
                os.close(start)


def settings_of_file(path: Path, known: KnownVariables) -> ProcessSettings:
    """The settings of one file in the form of nccl.conf.

    Raises:
        OSError: as the kernel gave it.
    """
    with path.open("rb") as file:
        content = file.read(_FILE_BYTES + 1)
    not_read: tuple[tuple[Origin, str], ...] = (("conf_file", _TOO_LONG),) if len(content) > _FILE_BYTES else ()
    return _in_force((), [_parsed(content[:_FILE_BYTES], "conf_file", known)], None, not_read=not_read)


def parse_environment(
    data: bytes | bytearray, wanted: Callable[[str], bool], length: int | None = None
) -> dict[str, str]:
    """The wanted variables of an environment as the kernel shows it; of several equal names the first, as for getenv.

    Args:
        data: ``NAME=value`` texts, each ended by a NUL.
        wanted: whether a variable of this name is kept; the value of no other one is copied.
        length: how much of the data counts; all of it if not given.
    """
    found: dict[str, str] = {}
    start, length = 0, len(data) if length is None else length
    while start < length:
        end = data.find(b"\0", start, length)
        end = length if end < 0 else end
        equals = data.find(b"=", start, end)
        if equals > start:
            name = data[start:equals].decode("utf-8", "backslashreplace")
            if wanted(name):
                found.setdefault(name, data[equals + 1 : end].decode("utf-8", "backslashreplace"))
        start = end + 1
    return found


# --- one process ---


def _read_process(
    pid: int, folder: int, known: KnownVariables, buffer: bytearray, own_namespace: str
) -> ProcessSettings:
    kept = _read_environment(folder, buffer)
    if len(kept) > MOST_SETTINGS:
        raise _NotRead("too_long")
    root = start = None
    try:
        with suppress(OSError):
            root = open_directory("root", folder)
            start = open_directory("cwd", folder)
        found = RootedFiles(root, start) if root is not None else None
        home = kept.get("HOME", "")
        version = None
        if found is not None:
            home = home_of(found, user_id(folder)) or home
            version = nccl_version(folder, found)
        settings = _settings(pid, kept, known, found, home)
    finally:
        for descriptor in (root, start):
            if descriptor is not None:
                os.close(descriptor)
    namespace = link("ns/net", folder)
    started = launched(kept, user_id(folder), namespace)
    return ProcessSettings(
        settings.settings, settings.shadowed, pid,
        rank=started.rank, job=started.job, single_node=started.single_node,
        nccl_version=version,
        malformed=settings.malformed, files_not_read=settings.files_not_read, missing_files=settings.missing_files,
        interfaces=interfaces(folder) if namespace and own_namespace and namespace != own_namespace else None,
        network_namespace=namespace,
    )  # fmt: skip


def _read_environment(folder: int, buffer: bytearray) -> dict[str, str]:
    """The variables that are kept, and those of launchers, which are dropped when they are understood."""
    descriptor = os.open("environ", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    filled = 0
    try:
        with memoryview(buffer) as view:
            while filled < len(buffer) and (count := os.readv(descriptor, [view[filled:]])):
                filled += count
        if filled > _ENVIRONMENT_BYTES:
            raise _NotRead("too_long")
        if buffer.find(b"=", 0, filled) < 0:
            raise _NotRead("overwritten")
        return parse_environment(buffer, lambda name: kept_name(name) or name in LAUNCHER_NAMES, filled)
    finally:
        os.close(descriptor)
        buffer[:filled] = bytes(filled)


def _settings(
    pid: int | None, kept: Mapping[str, str], known: KnownVariables, found: RootedFiles | None, home: str
) -> ProcessSettings:
    """The settings of an environment and of the files that belong to it.

    Source of the order: ``initEnvFunc`` in ``src/misc/param.cc`` of NCCL.
    """
    environment = [_setting(name, value, known) for name, value in kept.items() if kept_name(name)]
    named = kept.get("NCCL_CONF_FILE", "")
    paths: list[tuple[Origin, str]] = []
    if named:
        paths.append(("conf_file", named))
    elif home.startswith("/"):
        paths.append(("home_file", f"{home}/.nccl.conf"))
    paths.append(("system_file", _SYSTEM_FILE))
    contents, not_read = [], []
    for origin, path in paths:
        if found is None:
            not_read.append((origin, "no permission"))
            continue
        try:
            content = found.read(path, _FILE_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            not_read.append((origin, (error.strerror or "unreadable").lower()))
            continue
        if len(content) > _FILE_BYTES:
            not_read.append((origin, _TOO_LONG))
        contents.append(_parsed(content[:_FILE_BYTES], origin, known))
    return _in_force(environment, contents, found, pid, tuple(not_read))


def _in_force(
    environment: Iterable[Setting],
    contents: list[ConfFile],
    found: RootedFiles | None,
    pid: int | None = None,
    not_read: tuple[tuple[Origin, str], ...] = (),
) -> ProcessSettings:
    settings, shadowed = effective_settings(tuple(environment), contents)
    return ProcessSettings(
        settings, shadowed, pid,
        malformed=tuple((one.origin, number) for one in contents for number in one.malformed),
        files_not_read=not_read,
        missing_files=frozenset(_missing(settings, found)) if found is not None else frozenset(),
    )  # fmt: skip


def _missing(settings: Iterable[Setting], found: RootedFiles) -> Iterator[str]:
    for setting in settings:
        if setting.name in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE") and setting.value:
            with suppress(OSError):
                if not found.exists(setting.value):
                    yield setting.name


def _parsed(content: bytes, origin: Origin, known: KnownVariables) -> ConfFile:
    parsed = parse_conf_file(content, origin, kept_name)
    kept = tuple(_setting(one.name, one.value or "", known, origin) for one in parsed.settings)
    return ConfFile(origin, kept, parsed.malformed)


def _setting(name: str, value: str, known: KnownVariables, origin: Origin = "environment") -> Setting:
    return Setting(name, None if secret_name(name, known) else value, origin)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A directory by descriptor: that of a process stays that of this process, though its number be used again."""
    descriptor = open_directory(str(path))
    try:
        yield descriptor
    finally:
        os.close(descriptor)
