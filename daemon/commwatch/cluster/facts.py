"""Facts about a member's node: versions, parts, settings, names, interfaces. No GPU is queried, no torch is loaded."""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import mmap
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from commwatch import __version__
from commwatch.cluster.interfaces import gloo_choice, nccl_choice, read_interfaces
from commwatch.cluster.messages import WORD, Facts, word_of
from commwatch.jobs.settings.node_network import read_node_network
from commwatch.jobs.settings.variables import KnownVariables
from commwatch.sources import files
from commwatch.sources.rdma.places import is_function_beside

_DRIVER = re.compile(rb"(?:Kernel Module(?: for \w+)?|Module)\s+([0-9]+(?:\.[0-9]+)+)")
_CUDA = re.compile(rb"^cuda(?::[^=]*)?\s*=\s*'([0-9.]+)'", re.MULTILINE)
_IN_LIBRARY = re.compile(rb"NCCL version ([0-9]+\.[0-9]+\.[0-9]+)")
_IN_NAME = re.compile(r"libnccl\.so\.([0-9]+\.[0-9]+\.[0-9]+)$")
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/lib",
)
_LONGEST = 64
_NCCL_CONF = Path("/etc/nccl.conf")


def read_facts(
    sysfs: Path, procfs: Path, variables: Mapping[str, str], known: KnownVariables, master: str,
    *, interface: str = "", conf: Path = _NCCL_CONF,
) -> Facts:  # fmt: skip
    """Read all of it. Blocks, as a name server or the firmware of an adapter may.

    Args:
        known: the variables of NCCL; those that belong to a rank are no difference between nodes.
        master: name or address of the meeting place.
        interface: that the job will use, whatever the environment says; empty: none is given.
    """
    interfaces, host = read_interfaces(procfs), socket.gethostname()
    own_addresses = addresses_of(host)
    given = {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface} if interface else {}
    return Facts(
        versions=_versions(sysfs, procfs, variables, conf),
        settings=dict(_settings(variables, known)),
        parts=_parts(sysfs, procfs),
        interfaces=interfaces,
        nccl=nccl_choice(interfaces, {**variables, **given}),
        gloo=gloo_choice(interfaces, {**variables, **given}, own_addresses),
        own_name=word_of(host),
        own_addresses=own_addresses,
        master_addresses=addresses_of(master),
    )


def addresses_of(name: str) -> tuple[str, ...]:
    """To which addresses a name resolves; empty where it does not."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))[:16]


# --- versions ---


def _versions(sysfs: Path, procfs: Path, variables: Mapping[str, str], conf: Path) -> dict[str, str]:
    torch = _package("torch")
    found = {
        "driver": _driver(procfs),
        "CUDA": _cuda(),
        "NCCL": nccl_version(variables),
        "torch": torch,
        "commwatch": __version__,
        "kernel": _first_line(procfs / "sys/kernel/osrelease"),
        "NIC firmware": _counted(_nic_firmware(sysfs)),
        "GPU firmware": _counted(_of_gpus(procfs, "GPU Firmware")),
        "GPU VBIOS": _counted(_of_gpus(procfs, "Video BIOS")),
        "/etc/nccl.conf": _digest(conf),
    }
    return {name: value[:_LONGEST] or "none" for name, value in found.items()}


def _driver(procfs: Path) -> str:
    found = _DRIVER.search(files.read_if_there(f"{procfs}/driver/nvidia/version") or b"")
    return found[1].decode() if found else ""


def _package(name: str) -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return ""


def _cuda() -> str:
    """That torch was built for, from its file of versions: importing torch takes seconds."""
    with suppress(OSError, ValueError, ImportError):
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin:
            found = _CUDA.search(Path(spec.origin).with_name("version.py").read_bytes())
            return found[1].decode() if found else ""
    return ""


def nccl_version(variables: Mapping[str, str]) -> str:
    """Version of the library that torch would load: a preloaded one, its own package's, else the loader's."""
    preloaded = [one for one in re.split(r"[ :]", variables.get("LD_PRELOAD", "")) if "libnccl" in one]
    for path in preloaded:
        return _library_version(path)
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"):
        if version := _package(name):
            return version
    for folder in (*filter(None, variables.get("LD_LIBRARY_PATH", "").split(":")), *_LIBRARY_FOLDERS):
        if os.path.exists(path := f"{folder}/libnccl.so.2"):
            return _library_version(path)
    return ""


def _library_version(path: str) -> str:
    """By the name of the file, else by the text in it that NCCL prints."""
    if found := _IN_NAME.search(os.path.realpath(path)):
        return found[1]
    with (
        suppress(OSError, ValueError),
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text,
    ):
        said = _IN_LIBRARY.search(text)
        return said[1].decode() if said else "unknown"
    return "unknown"


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except FileNotFoundError:
        return ""
    except OSError:
        return "unreadable"


def _settings(variables: Mapping[str, str], known: KnownVariables) -> Iterator[tuple[str, str]]:
    names = sorted(name for name in variables if name.startswith("NCCL_"))
    for name in names[:128]:
        if re.fullmatch(WORD, name) and ((one := known.variables.get(name)) is None or not one.per_rank):
            yield name[:256], variables[name].encode("utf-8", "backslashreplace").decode()[:_LONGEST]


# --- parts ---


def _parts(sysfs: Path, procfs: Path) -> dict[str, str]:
    network = read_node_network(sysfs, procfs)
    ports = [one for one in network.rdma_ports or () if not one.is_virtual]
    found = {
        "GPUs": _counted(_of_gpus(procfs, "Model")),
        "RDMA ports": _counted(
            f"{one.link_layer} {one.rate_gbit or 0:g} Gbit/s{'' if one.active else ', not active'}" for one in ports
        ),
        "RoCE GIDs": _counted(f"{len(one.gids)}" for one in ports if one.gids is not None),
    }
    return {name: value[:200] or "none" for name, value in found.items()}


def _of_gpus(procfs: Path, field: str) -> Iterator[str]:
    """A field of each GPU, as the driver lists it in procfs; this asks no GPU."""
    for path in sorted(glob.glob(f"{glob.escape(str(procfs))}/driver/nvidia/gpus/*/information")):
        for line in (files.read_if_there(path) or b"").decode("utf-8", "backslashreplace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                yield value.strip()


def _nic_firmware(sysfs: Path) -> Iterator[str]:
    for home in sorted(glob.glob(f"{glob.escape(str(sysfs))}/class/infiniband/*")):
        if not is_function_beside(home):  # pods come and go with those
            yield files.parse_word(files.read_if_there(f"{home}/fw_ver") or b"")


def _first_line(path: Path) -> str:
    return (files.read_if_there(str(path)) or b"").decode("utf-8", "backslashreplace").strip()


def _counted(values: Iterator[str]) -> str:
    """Like values together: ``8 x NVIDIA H100``."""
    return ", ".join(f"{count} x {value}" for value, count in sorted(Counter(filter(None, values)).items()))
