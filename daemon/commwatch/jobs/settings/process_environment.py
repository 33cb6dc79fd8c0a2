"""The NCCL settings of processes, and of which job they are: ``/proc/PID/environ``, and the nccl.conf files there.

Blocks: a file may lie on a file server that is gone, and ``environ`` waits for the memory of the process. So this is
for a worker process or a command, never for the daemon's event loop.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from commwatch.jobs.flight_recorder.files import series_of
from commwatch.jobs.logs.files import identity_of, name_of
from commwatch.jobs.settings.conf_file import ConfFile, effective_settings, parse_conf_file
from commwatch.jobs.settings.facts import Origin, ProcessSettings, Setting
from commwatch.jobs.settings.names import kept_name, secret_name
from commwatch.jobs.settings.records import UnreadProcess
from commwatch.jobs.settings.rooted_files import RootedFiles, open_directory
from commwatch.jobs.settings.variables import KnownVariables
from commwatch.sources import files
from commwatch.sources.services import node_processes_visible

_ENVIRONMENT_BYTES = 4 * 2**20
"""Longer than any environment that the kernel takes with the usual limit of the stack (a quarter of 8 MiB)."""
_FILE_BYTES = 64 * 1024
_PASSWD_BYTES = 4 * 2**20
_MAPS_BYTES = 8 * 2**20

_LIBRARY = re.compile(rb"^[^\n/]*(/[^\n]*/libnccl\.so[^\n/]*)$", re.MULTILINE)
_IN_NAME = re.compile(r"libnccl\.so\.([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})$")
_IN_WHEEL = re.compile(r"nvidia_nccl_cu[0-9]{1,3}-([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})(?:\.[^/]*)?\.dist-info")
_DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The later name first, as torch reads them; each is a path to which the rank is appended."""
_TOO_LONG = "longer than 64 KiB, the rest"
_SYSTEM_FILE = "/etc/nccl.conf"

_JOB = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE")
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZES = (("WORLD_SIZE", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"))
_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")

_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_WORLD_SIZE = (*(size for size, _ in _SIZES), "SLURM_NTASKS")
_LAUNCHER_NAMES = frozenset(
    {*_JOB, *_RANK, *_LOCAL_RANK, *_WORLD_SIZE, *_NODES, *(name for pair in _SIZES for name in pair), "HOME"}
)
"""Variables that are read but not kept."""

MOST_SETTINGS = 512
"""Of one process that are kept; NCCL, torch and CUDA know fewer."""

UnreadReason: TypeAlias = Literal[
    "no_permission", "hidden", "overwritten", "too_long", "unreadable", "no_answer", "not_reached"
]
"""hidden: this process table does not show the node's processes. overwritten: the process wrote its title over its
environment, or has none. too_long: its environment, or the number of its settings. no_answer: reading it took too long.
not_reached: there was no time left."""


@dataclass(frozen=True, slots=True)
class SettingsReading:
    """The settings of some processes; those that ended meanwhile are in neither list."""

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
        begin: called with each process before it is touched; where it says no, this one is not reached.
    """
    read, unread = [], []
    buffer = bytearray(_ENVIRONMENT_BYTES + 1)
    own_namespace = _link(f"{procfs}/self/ns/net")
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
    """
    kept = {name: value for name, value in environment.items() if kept_name(name) or name in _LAUNCHER_NAMES}
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
        version, dumps = None, ""
        dump_path = next((kept[name] for name in _DUMPS if kept.get(name)), "")
        if found is not None:
            home = _home_of(found, _user_id(folder)) or home
            version = _nccl_version(folder, found)
            dumps = _dumps(dump_path, found)
        settings = _settings(pid, kept, known, found, home)
        logs = _logs(pid, folder, settings, found)
    finally:
        for descriptor in (root, start):
            if descriptor is not None:
                os.close(descriptor)
    namespace = _link("ns/net", folder)
    rank, job, single_node = _launched(kept, _user_id(folder), namespace)
    return ProcessSettings(
        settings.settings, settings.shadowed, pid,
        rank=rank,
        world_size=_number(kept, _WORLD_SIZE), local_rank=_number(kept, _LOCAL_RANK),
        job=job, single_node=single_node, nccl_version=version,
        malformed=settings.malformed, files_not_read=settings.files_not_read, missing_files=settings.missing_files,
        interfaces=_interfaces(folder) if namespace and own_namespace and namespace != own_namespace else None,
        network_namespace=namespace, dump_path=dump_path, dumps=dumps, logs=logs,
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
        return parse_environment(buffer, lambda name: kept_name(name) or name in _LAUNCHER_NAMES, filled)
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


# --- what /proc says of a process beside its environment ---


def _content(name: str, folder: int, limit: int = _FILE_BYTES) -> bytes:
    """Of a file beneath; empty where it cannot be read."""
    return files.read_if_there(f"/proc/self/fd/{folder}/{name}", limit) or b""


def _link(path: str, at: int | None = None) -> str:
    """The target of a link such as ``ns/net``; empty where it cannot be read."""
    try:
        return os.readlink(path, dir_fd=at)
    except OSError:
        return ""


def _user_id(folder: int) -> int | None:
    """The real user id as the process itself sees it: a container may count its users otherwise."""
    users = files.parse_users(_content("status", folder))
    if users is None:
        return None
    outside = users.real
    for line in _content("uid_map", folder).splitlines():
        words = line.split()
        if len(words) == 3 and all(word.isdigit() for word in words):
            inner, outer, count = (int(word) for word in words)
            if outer <= outside < outer + count:
                return inner + outside - outer
    return outside


def _home_of(found: RootedFiles, user: int | None) -> str:
    """The home directory by ``/etc/passwd``; empty for users that come from elsewhere, such as a directory service."""
    if user is None:
        return ""
    try:
        lines = found.read("/etc/passwd", _PASSWD_BYTES).splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split(b":")
        if len(fields) >= 6 and fields[2] == str(user).encode():
            return os.fsdecode(fields[5])
    return ""


def _dumps(path: str, found: RootedFiles) -> str:
    folder, _, prefix = path.rpartition("/")
    if not path.startswith("/") or prefix[-1:].isdigit():  # a rank behind a digit cannot be told from the name
        return ""
    try:
        return series_of(found.identity(folder or "/"), f"{prefix}0")
    except OSError:
        return ""


def _logs(pid: int, folder: int, settings: ProcessSettings, found: RootedFiles | None) -> tuple[str, ...]:
    """The files that its output goes into, and NCCL's messages."""
    logs = set()
    for number in (1, 2):
        with suppress(OSError):  # closed, or not ours to see: no log that is known
            status = os.stat(f"fd/{number}", dir_fd=folder)
            if stat.S_ISREG(status.st_mode):
                logs.add(identity_of(status.st_dev, status.st_ino))
    name = next((one.value for one in settings.settings if one.name == "NCCL_DEBUG_FILE"), None)
    # What these lead to is another file for each process, and ours for us.
    if name and found is not None and not name.startswith(("/dev/", "/proc/")):
        inner = files.parse_inner_pid(_content("status", folder)) or pid
        with suppress(OSError):  # NCCL has not made it yet
            logs.add(identity_of(*found.identity(name_of(name, socket.gethostname().partition(".")[0], inner))))
    return tuple(sorted(logs))


def _nccl_version(folder: int, found: RootedFiles) -> tuple[int, ...] | None:
    """The version of the library that a process has loaded: by its name, or by the Python package that it came in."""
    match = _LIBRARY.search(_content("maps", folder, _MAPS_BYTES))
    if match is None:
        return None
    path = os.fsdecode(match[1])
    named = _IN_NAME.search(path)
    if named is None:
        packages, inside, _ = path.partition("/nvidia/nccl/lib/")
        if not inside:
            return None
        with suppress(OSError):
            versions = {one[1] for name in found.names(packages) if (one := _IN_WHEEL.fullmatch(name)) is not None}
            if len(versions) == 1:
                return tuple(map(int, versions.pop().split(".")))
        return None
    return tuple(map(int, named[1].split(".")))


def _interfaces(folder: int) -> frozenset[str] | None:
    """The network interfaces that the process sees."""
    lines = _content("net/dev", folder).decode("utf-8", "backslashreplace").splitlines()[2:]
    return frozenset(line.partition(":")[0].strip() for line in lines if ":" in line) or None


# --- the variables that its launcher (torchrun, Slurm, MPI) sets for its job ---


def _launched(variables: Mapping[str, str], user: int | None, network_namespace: str) -> tuple[str, str, bool | None]:
    """Rank and job, and whether the job runs on this node only, as the variables of a process say.

    A process without a rank belongs to no job: two programs that someone starts by hand in one allocation are not
    ranks of one job.

    Args:
        network_namespace: distinguishes two jobs that both meet at ``localhost``.
    """
    rank = _number(variables, _RANK)
    parts = [variables.get(name, "") for name in _JOB]
    job = ""
    if rank and any(parts):
        local = variables.get("MASTER_ADDR", "") in ("localhost", "127.0.0.1", "::1")
        identity = "\0".join((*parts, str(user), network_namespace if local else ""))
        # Only a digest is kept: the variables hold addresses.
        job = hashlib.sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return rank, job, _single_node(variables)


def _number(variables: Mapping[str, str], names: Iterable[str]) -> str:
    """The first of these variables that is a number, at most ten of its digits; empty without any."""
    return next((variables[name][:10] for name in names if variables.get(name, "").isdecimal()), "")


def _single_node(variables: Mapping[str, str]) -> bool | None:
    for everywhere, here in _SIZES:
        sizes = variables.get(everywhere, ""), variables.get(here, "")
        if all(size.isdecimal() and len(size) < 10 for size in sizes):
            return int(sizes[0]) == int(sizes[1])
    nodes = next((variables[name] for name in _NODES if variables.get(name, "").isdecimal()), "")
    return nodes == "1" if nodes else None
