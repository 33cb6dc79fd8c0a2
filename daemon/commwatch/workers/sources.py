"""The sources: one row each with its collectors, their intervals, its process, and its class.

Rows name modules and do not import them: a source is imported in the process that serves it alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from commwatch.config.settings import Sources, SourceSection
from commwatch.node.pcie_samples import COLLECTOR as PCIE_SAMPLES
from commwatch.sources.base import Origin, Source
from commwatch.workers.wire import LARGEST_FRAME, Bounds


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """The worker process behind some sources."""

    name: str
    bounds: Bounds
    """Bounds on the output of its process; no other metric is taken from it."""
    holds_driver: bool = False
    """It keeps a driver's device files open: its collectors are paused during maintenance, and a hanging process counts
    among the stuck processes of the node."""
    needs_driver: bool = False
    """Its orders come from sources that hold a driver: its collectors are paused during maintenance too."""

    confined: bool = False
    """It reads what jobs wrote, and nothing else: without network, programs and writing, where the kernel can."""

    @property
    def needs_release(self) -> bool:
        """Whether its collectors are paused during maintenance."""
        return self.holds_driver or self.needs_driver

    @property
    def sources(self) -> tuple[SourceRow, ...]:
        """The sources that it serves."""
        return tuple(row for row in SOURCES.values() if row.reader is self)


@dataclass(frozen=True, slots=True)
class CollectorRow:
    """A group of counters with a cadence of its own."""

    name: str
    """As on the metrics: ``nvml_nvlink``."""
    key: str
    """As the source calls it: ``nvlink``."""
    interval: str = "interval"
    """The setting of the source's section that holds its cadence."""
    devices_per_interval: int = 0
    """Devices that one interval is meant for: of more it is as many times longer. 0: it is for any number."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source. Functions are written ``module:name`` and take an ``Origin``."""

    name: str
    """Of its section in the configuration, too."""
    reader: ReaderRow
    factory: str
    """Makes the source, in its worker."""
    collectors: tuple[CollectorRow, ...]
    absent: str = ""
    """``module:name`` of a function that gives the reason why this node has nothing to read, or None; empty if only
    reading shows it."""
    needs_gpus: bool = False
    """Read only where there are or should be GPUs."""
    reads_procfs: bool = False
    of_jobs: bool = False
    """Reads what belongs to the users of the node: to the endpoint, which is open, go no words from its orders."""
    components: tuple[str, ...] = ()
    """Kinds of the components whose counters it reads."""
    pulse: str = ""
    """The collector that shows whether it is read now; empty: the first."""
    completes: str = ""
    """The source whose section it shares, and to which it adds what that lacks on some nodes. Others need no process
    for it, and without its readings the state of the node is known all the same."""
    lists_parts: bool = False
    """It shows which parts the node has for communication: while it is not read, none of them is known to work."""

    def section(self, sources: Sources) -> SourceSection:
        """The source's section of the configuration, or that of the source that it completes."""
        section: SourceSection = getattr(sources, self.completes or self.name)
        return section

    def make(self, origin: Origin) -> Source:
        """Import and make the source; opens nothing."""
        source: Source = load(self.factory)(origin)
        return source

    def why_absent(self, origin: Origin) -> str | None:
        """The reason why this node has nothing to read; None if it has, or if only reading shows it."""
        why: str | None = load(self.absent)(origin) if self.absent else None
        return why


@cache
def load(name: str) -> Any:
    """The object that ``module:name`` names, imported now."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def lasting_readers(sources: Sources) -> int:
    """How many readers with a driver or the host's files there may be, from the daemon's start to its end."""
    enabled = (row for row in SOURCES.values() if row.section(sources).enabled and not row.of_jobs)
    return len({row.reader.name for row in enabled})


def _bounds(*families: str, most_series: int, largest_frame: int = LARGEST_FRAME) -> Bounds:
    return Bounds(tuple(f"commwatch_{family}_" for family in families), most_series, largest_frame)


_WIDE: Final = 16 * 2**20
# b200x8 with all metrics has 7,560 series of its driver, and 72 GPUs of which each sees all would have some 96,000; an
# interface of the host has 15, and there may be thousands where physical_only is off.
_OF_DRIVER: Final = _bounds(
    "c2c", "counters", "fabric", "gpu", "nvlink", "pcie", "software", most_series=200_000, largest_frame=_WIDE
)
_OF_HOST: Final = _bounds(
    "counters", "ethernet", "gpudirect", "kernel_log", "pcie", "service", most_series=100_000, largest_frame=_WIDE
)
_NVML: Final = ReaderRow("nvml", _OF_DRIVER, holds_driver=True)
_PCIE: Final = ReaderRow("nvml_pcie", _bounds("counters", "pcie", most_series=2_000), holds_driver=True)
_RDMA: Final = ReaderRow("rdma", _bounds("counters", "ethernet", "rdma", most_series=20_000))
_HOST: Final = ReaderRow("host", _OF_HOST)
_JOBS: Final = ReaderRow(
    "jobs", _bounds("flight_recorder", "nccl_inspector", "nccl_log", most_series=650), confined=True
)
_SETTINGS: Final = ReaderRow("settings", _bounds("nccl_setting", most_series=80), needs_driver=True, confined=True)

READERS: Final = (_NVML, _PCIE, _RDMA, _HOST, _JOBS, _SETTINGS)

_ROWS: Final = (
    SourceRow(
        "nvml",
        _NVML,
        "commwatch.sources.nvml.source:make_source",
        (
            CollectorRow("nvml_identity", "identity", "identity_interval"),
            CollectorRow("nvml_gpu", "gpu", "gpu_interval"),
            CollectorRow("nvml_processes", "processes", "processes_interval"),
            CollectorRow("nvml_nvlink", "nvlink", "nvlink_interval"),
            CollectorRow("nvml_nvlink_errors", "nvlink_errors", "nvlink_errors_interval"),
            CollectorRow("nvml_pcie", "pcie", "pcie_interval"),
            CollectorRow("nvml_gpm", "gpm", "gpm_interval"),
            CollectorRow("nvml_fabric", "fabric", "fabric_interval"),
            CollectorRow("nvml_events", "events", "events_interval"),
            CollectorRow("nvml_p2p", "p2p", "p2p_interval"),
        ),
        absent="commwatch.sources.presence:driver_absent",
        needs_gpus=True,
        components=("gpu", "nvlink", "nvswitch", "pcie_link"),
        pulse="nvml_gpu",
        lists_parts=True,
    ),
    SourceRow(
        PCIE_SAMPLES,
        _PCIE,
        "commwatch.sources.nvml.samples:make_source",
        # Two calls of 20 ms for each GPU, one after another: 8 GPUs block the process for 3.2 % of its time.
        (CollectorRow(PCIE_SAMPLES, "pcie_sampled", "pcie_sampled_interval", devices_per_interval=8),),
        absent="commwatch.sources.presence:driver_absent",
        needs_gpus=True,
        completes="nvml",
    ),
    SourceRow(
        "network",
        _HOST,
        "commwatch.sources.network:make_source",
        (CollectorRow("network", "network"),),
        components=("interface",),
        lists_parts=True,
    ),
    SourceRow(
        "pci",
        _HOST,
        "commwatch.sources.pci.source:make_source",
        (CollectorRow("pci", "pci"), CollectorRow("pci_aer", "aer", "aer_interval")),
        components=("nvswitch", "pcie_link"),
        lists_parts=True,
    ),
    SourceRow(
        "services",
        _HOST,
        "commwatch.sources.services:make_source",
        (CollectorRow("services", "services"),),
        absent="commwatch.sources.presence:services_absent",
        reads_procfs=True,
    ),
    SourceRow(
        "rdma",
        _RDMA,
        "commwatch.sources.rdma.source:make_source",
        (CollectorRow("rdma", "rdma"),),
        absent="commwatch.sources.presence:rdma_absent",
        components=("rdma_port",),
        lists_parts=True,
    ),
    SourceRow(
        "ethtool",
        _RDMA,
        "commwatch.sources.ethtool.source:make_source",
        (CollectorRow("ethtool", "ethtool"),),
        absent="commwatch.sources.presence:ethtool_absent",
        components=("interface",),
    ),
    SourceRow(
        "kernel_log",
        _HOST,
        "commwatch.sources.kernel_log:make_source",
        (CollectorRow("kernel_log", "kernel_log"),),
        needs_gpus=True,
        reads_procfs=True,
    ),
    SourceRow(
        "nccl_logs",
        _JOBS,
        "commwatch.jobs.logs.source:make_source",
        (CollectorRow("nccl_logs", "nccl_logs"),),
        absent="commwatch.sources.presence:logs_absent",
        of_jobs=True,
    ),
    SourceRow(
        "nccl_inspector",
        _JOBS,
        "commwatch.jobs.inspector.source:make_source",
        (CollectorRow("nccl_inspector", "nccl_inspector"),),
        absent="commwatch.sources.presence:inspector_absent",
        of_jobs=True,
    ),
    SourceRow(
        "flight_recorder",
        _JOBS,
        "commwatch.jobs.flight_recorder.source:make_source",
        (CollectorRow("flight_recorder", "flight_recorder"),),
        absent="commwatch.sources.presence:dumps_absent",
        of_jobs=True,
    ),
    SourceRow(
        "nccl_settings",
        _SETTINGS,
        "commwatch.jobs.settings.source:make_source",
        (CollectorRow("nccl_settings", "nccl_settings"),),
        absent="commwatch.sources.presence:driver_absent",
        needs_gpus=True,
        reads_procfs=True,
        of_jobs=True,
    ),
)

SOURCES: Final = {row.name: row for row in _ROWS}
"""By name, in the order in which they are read first."""
