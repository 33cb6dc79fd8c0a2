"""The parts of a recorded node, as its driver and its kernel show them: what faults and probes act on."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice, takewhile
from pathlib import Path
from typing import Final, TypeVar

import pynvml

from commwatch.config.simulated import node_name
from commwatch.errors import ConfigError
from commwatch.sources import files
from commwatch.sources.pci_attributes import ancestors_of, endpoint_role, parse_generation, parse_width
from commwatch_rehearsal.simulation.presets import PRESETS
from commwatch_rehearsal.simulation.presets.parts import (
    EthernetInterface,
    Gpu,
    GpuModel,
    PciDevice,
    PciRole,
    Preset,
    RdmaPort,
    Remote,
)
from commwatch_rehearsal.simulation.recording.calls import OPENS_HANDLE
from commwatch_rehearsal.simulation.recording.file import Recording
from commwatch_rehearsal.simulation.recording.lines import Call, Fields, File, Folder

_T = TypeVar("_T")

_READ, _OK = 0, 0
"""Index and status of ``nvmlDeviceGetP2PStatus``."""
_LINE_RATES, _REMOTE_LINK = (164, 90), 146
"""Fields: megabytes per second of a link, number of the link at the other end."""
_MOST_PARTS: Final = 512
"""Of a kind: for each of them others are gone through."""
_MOST_LINKS: Final = 64
_LONGEST_TEXT: Final = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE
_VERSIONS: Final = {one.model.nvlink.version: one.model.nvlink for one in PRESETS.values() if one.model.nvlink}
"""Codes of ``nvmlDeviceGetNvLinkVersion`` from 3.0 to 5.0, each with such links: of earlier ones none is simulated."""
_ETHERNET, _MTU = "1", 1500
_RATE = re.compile(r"(\d{1,6})(?:\.\d+)? Gb/sec \((\d{1,3})X ?(\w*)\)")


class NoParts(ConfigError):
    """A recording does not show the parts of its node, so that no fault can be laid on it."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(str(path), None, "", f"takes no faults and no probes: {problem}")


@lru_cache(maxsize=2)
def recorded_preset(path: Path, recording: Recording) -> Preset:
    """The parts of a recorded node, without traffic of their own: that is in the recorded answers.

    GPUs come in the order in which the recorded driver lists them. Probes run as on healthy parts but for links that
    were down all the time.

    Raises:
        NoParts: the recording does not show them.
    """
    try:
        return _Parts(path, recording).preset()
    except (ValueError, OverflowError, RecursionError) as error:
        raise NoParts(path, f"an answer makes no sense ({error})") from None


@lru_cache(maxsize=2)
def gpu_numbers(recording: Recording) -> tuple[int, ...]:
    """The numbers that the recording gave the GPUs, in the order of ``recorded_preset``."""
    return tuple(_Driver(recording).numbers)


class _Driver:
    """The first successful answers of the recorded driver."""

    def __init__(self, recording: Recording) -> None:
        self._memories: dict[tuple[str, tuple[int, ...]], bytes] = {}
        """What a call wrote first, by its name and the arguments before that."""
        self.fields: dict[tuple[int, int, int], int] = {}
        """By GPU, field and scope."""
        for one in recording.answers:
            if isinstance(one, Call) and one.code == 0:
                place = next((at for at, each in enumerate(one.arguments) if isinstance(each, str)), 0)
                content = one.memory[place] if place < len(one.memory) else None
                key = (one.function, tuple(each for each in one.arguments[:place] if isinstance(each, int)))
                if key not in self._memories:
                    self._memories[key] = b"" if content is None else _bytes(one.function, content)
            elif isinstance(one, Fields):
                for field, scope, _, code, value in one.entries:
                    if code == 0:
                        self.fields.setdefault((one.gpu, field, scope), value)
        opens = f"{OPENS_HANDLE}ByIndex_v2"
        indexes = sorted(key[0] for name, key in self._memories if name == opens and len(key) == 1)
        self.numbers = list(dict.fromkeys(self.number(opens, index) or 0 for index in indexes))
        """Of the GPUs in the recording, in the order of their indexes."""

    def memory(self, function: str, *arguments: int) -> bytes | None:
        """What a call wrote; None where it never succeeded."""
        return self._memories.get((function, arguments))

    def text(self, function: str, *arguments: int) -> str | None:
        """A text, cut to the longest that NVML writes."""
        memory = self.memory(function, *arguments)
        return None if memory is None else memory.partition(b"\0")[0][:_LONGEST_TEXT].decode("latin-1")

    def number(self, function: str, *arguments: int) -> int | None:
        """A number of at most 64 bits."""
        memory = self.memory(function, *arguments)
        return None if memory is None else int.from_bytes(memory[:8], "little")

    def address(self, number: int) -> str | None:
        """The PCI address of a GPU, as sysfs spells it."""
        memory = self.memory("nvmlDeviceGetPciInfo_v3", number)
        return None if memory is None else _address(_pci_info(memory))


def _bytes(function: str, content: str) -> bytes:
    """Of a handle its number; of all else the memory, which is written in hexadecimal."""
    if function.startswith(OPENS_HANDLE):
        return int(content or "0").to_bytes(8, "little")
    return bytes.fromhex(content)


def _pci_info(memory: bytes) -> pynvml.nvmlPciInfo_t:
    size = ctypes.sizeof(pynvml.nvmlPciInfo_t)
    return pynvml.nvmlPciInfo_t.from_buffer_copy(memory[:size].ljust(size, b"\0"))


def _address(info: pynvml.nvmlPciInfo_t) -> str:
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


class _Parts:
    def __init__(self, path: Path, recording: Recording) -> None:
        self._path = path
        self._driver = _Driver(recording)
        self._contents: dict[str, str] = {}
        """By path below ``/sys``: the first content."""
        self._links: dict[str, Mapping[str, str]] = {}
        for one in recording.answers:
            if isinstance(one, File) and one.root == "sys" and not one.error:
                self._contents.setdefault(one.path, one.content.strip())
            elif isinstance(one, Folder) and one.root == "sys" and one.entries:
                self._links.setdefault(one.path, one.entries)

    def preset(self) -> Preset:
        driver = self._driver
        addresses = [driver.address(number) for number in self._few("GPUs", driver.numbers)]
        if not addresses or None in addresses:
            raise NoParts(self._path, "its driver lists no GPU, or not where they are")
        gpus = tuple(
            Gpu(
                address or "",
                driver.text("nvmlDeviceGetUUID", number) or "",
                driver.text("nvmlDeviceGetSerial", number),
            )
            for address, number in zip(addresses, driver.numbers, strict=True)
        )
        devices = self._few("PCIe devices", self._devices({gpu.pci_address for gpu in gpus}))
        known = {device.address for device in devices}
        if missing := next((gpu.pci_address for gpu in gpus if gpu.pci_address not in known), None):
            raise NoParts(self._path, f"its /sys does not show where GPU {missing} is")
        interfaces = self._few("network interfaces", self._interfaces(known))
        preset = Preset(
            name=node_name(str(self._path)),
            model=self._model(gpus, next(device for device in devices if device.address == gpus[0].pci_address)),
            gpus=gpus,
            devices=devices,
            interfaces=interfaces,
            nvswitches=tuple(device.address for device in devices if device.role == "nvswitch"),
            rdma_ports=self._few("RDMA ports", self._rdma_ports(interfaces, known)),
            driver_version=driver.text("nvmlSystemGetDriverVersion") or "0",
            cuda_driver_version=driver.number("nvmlSystemGetCudaDriverVersion_v2") or 0,
        )
        return self._with_links(preset)

    def _few(self, kind: str, parts: Iterable[_T]) -> tuple[_T, ...]:
        """Parts of a kind, of which no node has very many."""
        found = tuple(islice(parts, _MOST_PARTS + 1))
        if len(found) > _MOST_PARTS:
            raise NoParts(self._path, f"it has more than {_MOST_PARTS} {kind}")
        return found

    def _content(self, folder: str, name: str) -> str:
        return self._contents.get(f"{folder}/{name}", "")

    def _devices(self, gpus: set[str]) -> Iterator[PciDevice]:
        """GPUs, adapters, NVSwitches, and the bridges above them; a parent comes before its children."""
        places = self._links.get("bus/pci/devices", {})
        roles: dict[str, PciRole] = {}
        for address, folder in places.items():
            role = endpoint_role(self._content(folder, "class"), self._content(folder, "vendor"))
            if address in gpus or role in ("nic", "nvswitch"):
                roles[address] = "gpu" if address in gpus else role  # type: ignore[assignment]  # of the words of a role
        parents: dict[str, str] = {}
        for address in roles:
            chain = [*reversed(places[address].split("/"))]
            above = ancestors_of(chain)
            if chain == [address, *above, "devices"] and above and not files.is_pci_address(above[-1]):
                for number, (one, parent) in enumerate(zip((address, *above[:-1]), above, strict=True)):
                    if places.get(one) != "/".join(reversed(chain[number:])):
                        raise NoParts(self._path, f"its /sys does not show where {one} is")
                    parents[one] = parent
        depth = {address: len(places[address].split("/")) for address in parents}
        for address in sorted(depth, key=lambda one: (depth[one], one)):
            parent = parents[address]
            if address not in roles:
                downward = roles.get(parent) == "switch_upstream"
                is_root = parent not in parents
                roles[address] = "root_port" if is_root else "switch_downstream" if downward else "switch_upstream"
            yield self._device(address, parent, roles[address], places[address])

    def _device(self, address: str, parent: str, role: PciRole, folder: str) -> PciDevice:
        def number(name: str) -> int:
            text = self._content(folder, name)
            return int(text, 16) if re.fullmatch(r"0x[0-9a-f]{1,8}", text) else 0

        numa = files.parse_integer(self._content(folder, "numa_node").encode())
        return PciDevice(
            address=address,
            parent=parent,
            role=role,
            pci_class=number("class"),
            vendor_id=number("vendor"),
            device_id=number("device"),
            numa_node=-1 if numa is None else numa,
            generation=parse_generation(self._content(folder, "max_link_speed").encode()) or 1,
            width=parse_width(self._content(folder, "max_link_width").encode()) or 1,
            driver=self._links.get(folder, {}).get("driver", "").rpartition("/")[2],
        )

    def _model(self, gpus: tuple[Gpu, ...], device: PciDevice) -> GpuModel:
        """As the first GPU is; ``device`` is its place on the bus."""
        driver, numbers = self._driver, self._driver.numbers
        names = {driver.text("nvmlDeviceGetName", number) or "" for number in numbers}
        if len(names) > 1:
            raise NoParts(self._path, f"its GPUs are of several models: {', '.join(sorted(names)[:4])}")
        first = numbers[0]
        info = _pci_info(driver.memory("nvmlDeviceGetPciInfo_v3", first) or b"")
        generation = driver.number("nvmlDeviceGetMaxPcieLinkGeneration", first) or device.generation
        idle = driver.number("nvmlDeviceGetCurrPcieLinkGeneration", first) or generation
        if not 1 <= idle <= generation <= 6:
            raise NoParts(self._path, f"its GPUs have PCIe generation {idle} of {generation}")
        peers = [driver.number("nvmlDeviceGetP2PStatus", first, other, _READ) for other in numbers[1:]]
        return GpuModel(
            name=names.pop(),
            architecture=driver.number("nvmlDeviceGetArchitecture", first) or 0,
            pci_device_id=info.pciDeviceId >> 16,
            pci_subsystem_id=info.pciSubSystemId,
            memory_bytes=int.from_bytes((driver.memory("nvmlDeviceGetMemoryInfo_v2", first) or b"")[8:16], "little"),
            pcie_generation=generation,
            pci_class=device.pci_class,
            pcie_width=driver.number("nvmlDeviceGetMaxPcieLinkWidth", first) or device.width,
            idle_pcie_generation=idle,
            power_limit_watts=(driver.number("nvmlDeviceGetEnforcedPowerLimit", first) or 0) // 1000,
            pcie_peer_access=not peers or _OK in peers or peers == [None] * len(peers),
            mig=driver.memory("nvmlDeviceGetMigMode", first) is not None,
            pcie_background_bytes_per_second=0.0,
        )

    def _with_links(self, preset: Preset) -> Preset:
        """The node with its NVLinks: of each GPU as many as of the first, and where they lead."""
        driver = self._driver
        counts = {len(self._states(number)) for number in driver.numbers}
        version = driver.number("nvmlDeviceGetNvLinkVersion", driver.numbers[0], 0)
        if counts == {0} or version is None:
            return preset
        if len(counts) > 1 or version not in _VERSIONS:
            raise NoParts(self._path, "its GPUs differ in their NVLinks, or these are older than version 3")
        rate = next((driver.fields[key] for field in _LINE_RATES for key in driver.fields if key[1] == field), 0)
        ends = {
            (place, link): self._end(preset, number, link)
            for place, number in enumerate(driver.numbers)
            for link, active in enumerate(self._states(number))
            if active
        }
        wires = {link: end for link, end in ends.items() if end is not None}
        remote: Remote = "none" if not ends else "gpu" if wires else "switch"
        model = replace(
            _VERSIONS[version],
            links=counts.pop(),
            line_rate_megabytes_per_second=rate,
            remote=remote,
            background_bytes_per_second=0.0,
        )
        every = {(place, link) for place in range(len(preset.gpus)) for link in range(model.links)}
        return replace(
            preset,
            model=replace(preset.model, nvlink=model),
            wires=wires or None,
            inactive=frozenset(every - ends.keys()) if remote == "switch" else frozenset(),
        )

    def _states(self, number: int) -> list[int]:
        """The first state of each link of a GPU, from link 0 on."""
        states = (self._driver.number("nvmlDeviceGetNvLinkState", number, link) for link in range(_MOST_LINKS))
        return [state for state in takewhile(lambda state: state is not None, states) if state is not None]

    def _end(self, preset: Preset, number: int, link: int) -> tuple[int, int] | None:
        """The GPU and link at the other end of a link; None: a switch, or not known."""
        memory = self._driver.memory("nvmlDeviceGetNvLinkRemotePciInfo_v2", number, link)
        address = "" if not memory else _address(_pci_info(memory))
        place = next((place for place, gpu in enumerate(preset.gpus) if gpu.pci_address == address), None)
        other = self._driver.fields.get((number, _REMOTE_LINK, link))
        return None if place is None or other is None else (place, other)

    def _interfaces(self, known: Container[str]) -> Iterator[EthernetInterface]:
        """Those of the PCIe devices of the node."""
        for name, folder in self._links.get("class/net", {}).items():
            address = next((one for one in reversed(folder.split("/")) if files.is_pci_address(one)), "")
            if address in known and self._content(folder, "type") == _ETHERNET:
                yield EthernetInterface(
                    name,
                    address,
                    max(0, files.parse_integer(self._content(folder, "speed").encode()) or 0),
                    0.0,
                    bond=self._links.get(folder, {}).get("master", "").rpartition("/")[2],
                    mtu=files.parse_integer(self._content(folder, "mtu").encode()) or _MTU,
                )

    def _rdma_ports(self, interfaces: Collection[EthernetInterface], known: Container[str]) -> Iterator[RdmaPort]:
        """Those of the PCIe devices of the node."""
        for device, folder in self._links.get("class/infiniband", {}).items():
            address = next((one for one in reversed(folder.split("/")) if files.is_pci_address(one)), "")
            for port in filter(str.isdecimal, self._links.get(f"{folder}/ports", {}) if address in known else ()):
                here = f"{folder}/ports/{port}"
                rate = _RATE.match(self._content(here, "rate"))
                is_infiniband = self._content(here, "link_layer") == "InfiniBand"
                named = {self._contents[path] for path in self._contents if path.startswith(f"{here}/gid_attrs/ndevs/")}
                on_port = [one.name for one in interfaces if one.pci_address == address and one.name in named]
                yield RdmaPort(
                    device,
                    int(port),
                    address,
                    "InfiniBand" if is_infiniband else "Ethernet",
                    int(rate[1]) if rate else 0,
                    lanes=int(rate[2]) if rate else 4,
                    speed_name=rate[3] if rate else "",
                    interface="" if is_infiniband or not on_port else on_port[0],
                    background_bytes_per_second=0.0,
                )
