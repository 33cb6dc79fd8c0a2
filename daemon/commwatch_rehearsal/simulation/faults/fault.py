"""The records of a fault and of a kind of fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from commwatch_rehearsal.simulation.presets.parts import Preset

Target: TypeAlias = Literal["link", "gpu", "gpus", "pair", "switch", "interface", "rdma", "pci", "nvswitch", "node"]
"""Targets of a kind of fault: links of one GPU, one GPU, some or all GPUs, two GPUs, a PCIe switch or NVSwitch, a
network interface, the ports of an RDMA device, a PCIe device, a port of an NVSwitch, the whole node."""

TARGET_KEYS: Mapping[Target, tuple[str, ...]] = {
    "link": ("gpu", "link"),
    "gpu": ("gpu",),
    "gpus": ("gpu",),
    "pair": ("gpu", "peer"),
    "switch": ("device", "nvswitch"),
    "interface": ("interface",),
    "rdma": ("device", "port"),
    "pci": ("device", "gpu", "nic"),
    "nvswitch": ("nvswitch", "link"),
    "node": (),
}
"""The keys that name it in the file."""


class SimulatedProbeFailure(Exception):
    """An injected fault made a simulated collective fail."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    start: float
    """Seconds since the node started."""
    end: float
    """Seconds since the node started; the fault is over at this instant; infinite: it never ends."""
    gpu: int | None = None
    """Place in the preset, from 0; None: all GPUs."""
    link: int | None = None
    """None: all links of the GPU."""
    peer: int | None = None
    """The other GPU of a pair: place in the preset, from 0."""
    interface: str = ""
    device: str = ""
    """Name of an RDMA device, or PCI address of a device or switch."""
    port: int | None = None
    """Of the RDMA device; None: all its ports."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """The numbers of this kind: rate per second, lanes, generation, factor, share."""
    words: Mapping[str, str] = field(default_factory=dict)
    """The settings of this kind that are not numbers: the name of a counter, a reason."""

    @property
    def reason(self) -> str:
        """Why, in words; empty for a kind that takes none."""
        return self.words.get("reason", "")

    def active(self, time: float) -> bool:
        """Whether it holds at a time, seconds since the node started."""
        return self.start <= time < self.end

    def strikes(self, gpu: int, link: int | None = None) -> bool:
        """Whether this GPU, or this link of it, is among its targets; the link of an NVSwitch is none of a GPU's."""
        if self.device or self.interface:
            return False
        return self.gpu in {None, gpu} and (link is None or self.link in {None, link})


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a kind of fault beside its times and its target."""

    parse: Callable[[str], float | str]
    """Reads the text of the file; raises ValueError that says what is expected."""
    accepts: str
    """The accepted values, for people."""
    default: float | str | None = None
    """None: the key must be there."""


@dataclass(frozen=True, slots=True)
class Kind:
    target: Target
    help: str
    """The effect, as ``commwatch simulate --list`` prints it."""
    example: str
    """The text after ``fault: KIND`` in an example, without braces."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    problems: Callable[[Fault, Preset], Iterable[tuple[str, str]]] = lambda _fault, _preset: ()
    """The errors of a fault whose keys are each valid: key and problem."""
    preset: str = "h100x8"
    """The node that the example is for."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that name its target."""
        return TARGET_KEYS[self.target]

    def entry(self, name: str) -> str:
        """The example as one entry of a file of faults; ``name`` is that of the kind."""
        return f"{{fault: {name}{', ' if self.example else ''}{self.example}}}"
