"""The typed configuration: what can be set, its defaults and its bounds; ``config_file`` reads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, field

from commwatch.errors import did_you_mean
from commwatch.units import parse_duration, parse_rate, parse_size
from commwatch_exporters.catalogue import OPT_IN
from commwatch_exporters.listen import EndpointError, split_address


class Duration(float):
    """Seconds; written with a unit."""


class Size(int):
    """Bytes; written with a unit."""


class Rate(float):
    """Bytes per second; written with a unit."""


def decode_quantity(kind: type, value: object) -> object:
    """Turn a text with a unit into a quantity; msgspec calls this for the three types above."""
    if isinstance(value, kind):
        return value
    if kind is Duration:
        return Duration(parse_duration(value))
    if kind is Size:
        return Size(parse_size(value))
    if kind is Rate:
        return Rate(parse_rate(value))
    raise NotImplementedError(kind)


def encode_quantity(value: object) -> str:
    """Turn a quantity into the text that ``decode_quantity`` reads back."""
    for kind, unit in ((Duration, "s"), (Size, "B"), (Rate, "B/s")):
        if isinstance(value, kind):
            return f"{value:d}{unit}" if isinstance(value, int) else f"{float(value):f}{unit}"
    raise NotImplementedError(type(value))


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the configuration file; a key that it does not know is an error."""


def section_json(section: Section) -> bytes:
    """A section as JSON, for another process."""
    return msgspec.json.encode(section, enc_hook=encode_quantity)


SHORTEST_TIME_SECONDS = 0.05


class SourceSection(Section, frozen=True):
    """Settings of every source: a switch, and a deadline for each run of a collector."""

    enabled: bool = True
    deadline: Duration = Duration(5)
    """A run of a collector that takes longer is given up; its worker is left alone and replaced."""

    def __post_init__(self) -> None:
        """Refuse intervals and deadlines that would keep a core busy."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, Duration) and value < SHORTEST_TIME_SECONDS:
                raise ValueError(f"{name} must be at least {SHORTEST_TIME_SECONDS * 1000:g}ms")


STILL_PATH = "/still"
"""The node's page, in the form that does not load itself again."""
RUNBOOKS = "/runbooks/"
"""Path of the pages of the alerts, one for each."""


Url: TypeAlias = Annotated[str, Meta(
    pattern=r"^(https?://[^\s\"'<>?#]*[^\s\"'<>?#/])?\Z",
    description="a URL that begins with http:// or https:// and does not end in a slash",
)]  # fmt: skip
Cores: TypeAlias = Annotated[str, Meta(
    pattern=r"^(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?\Z", description="numbers of cores, such as 0-1,64",
)]  # fmt: skip
ProbeName: TypeAlias = Annotated[str, Meta(
    pattern=r"^[a-z][a-z0-9_]{0,31}\Z", description="a letter, then at most 31 letters, digits and _, all lower-case",
)]  # fmt: skip
User: TypeAlias = Annotated[str, Meta(
    pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}\$?$", description="a name or number of a user",
)]  # fmt: skip


class Web(Section, frozen=True):
    listen_addresses: tuple[str, ...] = (":28029",)
    """HOST:PORT each; an empty host means every address of the node. None: no port is opened."""
    telemetry_path: Annotated[str, Meta(pattern=r"^/[A-Za-z0-9/_.-]+\Z")] = "/metrics"
    config_file: str = ""
    """TLS, users and limits, in the format of exporter-toolkit (docs/using/endpoint.md); empty: plain HTTP."""
    systemd_socket: bool = False
    """Listen on what systemd hands over (commwatch.socket), not on ``listen_addresses``."""
    documentation: Url = ""
    """Where the files of docs/ can be read, as a URL without a slash at its end: the node's page links to them."""

    def __post_init__(self) -> None:
        for address in self.listen_addresses:
            try:
                split_address(address)
            except EndpointError as error:
                raise ValueError(str(error)) from error
        if self.telemetry_path in ("/healthz", "/readyz"):
            raise ValueError(f"{self.telemetry_path} is the path of the health check; choose another telemetry_path")
        if self.telemetry_path == STILL_PATH:
            raise ValueError(f"{STILL_PATH} is a path of the node's page; choose another telemetry_path")
        if self.telemetry_path.startswith("/api/"):
            raise ValueError(f"{self.telemetry_path} is a path of the API; choose another telemetry_path")
        if self.telemetry_path.startswith(RUNBOOKS):
            raise ValueError(f"{self.telemetry_path} is a path of the runbooks; choose another telemetry_path")


class Textfile(Section, frozen=True):
    """The metrics as a file, for node_exporter's textfile collector."""

    path: Annotated[str, Meta(pattern=r"^(/.*\.prom)?\Z", description="a path from the root that ends in .prom")] = ""
    """From the root, and ending in .prom, as node_exporter reads no other; empty: no file is written."""
    interval: Duration = Duration(15)

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError("interval must be at least 1s")


class Paths(Section, frozen=True):
    """Where the node shows itself, and where the daemon keeps what must survive a restart."""

    sysfs: str = "/sys"
    procfs: str = "/proc"
    state: str = ""
    """Empty: $STATE_DIRECTORY, else /var/lib/commwatch for root, else ~/.local/state/commwatch."""


class Log(Section, frozen=True):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    """auto: JSON under systemd or in a pipe, readable on a terminal."""


class Process(Section, frozen=True):
    """Share of the node's processor for the daemon and its readers."""

    cpus: Cores = ""
    """Cores such as 0-1,64: those that no job uses. Ranks of probes keep all that the daemon was started with."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 0
    """Added to the nice value that the daemon was started with."""


class Simulation(Section, frozen=True):
    """A node that does not exist, in place of the real one."""

    preset: Annotated[str, Meta(pattern=r"^([a-z0-9]*|.*/.*|.*\.ya?ml|.*\.cwrec)\Z")] = ""
    """A preset such as h100x8 (commwatch simulate --list), a file of one's own or a recording; empty: the real node."""
    faults: str = ""
    """File of faults (docs/using/simulation.md); read again when it changes."""
    playback: Literal["hold", "loop", "once"] = "hold"
    """After the end of a recording: hold its last answers, loop back to its beginning, or (once) end the daemon, which
    then always starts at the beginning."""


class NvmlSection(SourceSection, frozen=True):
    """NVIDIA's driver."""

    deadline: Duration = Duration(2)
    start_deadline: Duration = Duration(10)
    """Of opening the driver, for each GPU: without persistence mode one takes 1 to 3 s."""
    nvlink_interval: Duration = Duration(1)
    nvlink_errors_interval: Duration = Duration(10)
    pcie_interval: Duration = Duration(10)
    pcie_sampled_interval: Duration = Duration(10)
    """Of the samples of PCIe traffic, 20 ms each way, on GPUs that do not measure it (``gpm_interval``). It is meant
    for up to 8 of them; for up to 16 it is twice as long, and so on."""
    gpm_interval: Duration = Duration(10)
    """Of the driver's own measurement of PCIe traffic, on data centre GPUs from Hopper on."""
    gpu_interval: Duration = Duration(10)
    """Of use, clocks, temperature and power."""
    processes_interval: Duration = Duration(60)
    """Of the processes on the GPUs, which are slow to list, and of the modes that decide who may use them."""
    fabric_interval: Duration = Duration(15)
    identity_interval: Duration = Duration(60)
    events_interval: Duration = Duration(5)
    """Of the errors (Xids) that the driver reports by itself."""
    p2p_interval: Duration = Duration(600)
    """Of the question which pairs of GPUs can reach each other directly."""


class NetworkSection(SourceSection, frozen=True):
    interval: Duration = Duration(5)
    physical_only: bool = True
    """Leave out interfaces without a device of their own: loopback, bridges, bonds, veth, VLANs."""
    include: tuple[str, ...] = ()
    """Interfaces to read whatever they are, by name; shell patterns."""
    exclude: tuple[str, ...] = ()
    """Interfaces never to read, by name; shell patterns."""


class PciSection(SourceSection, frozen=True):
    """PCIe devices of sysfs: GPUs, network adapters and the bridges above them."""

    interval: Duration = Duration(10)
    aer_interval: Duration = Duration(10)
    """Of the errors that the kernel counts."""


class RdmaSection(SourceSection, frozen=True):
    """RDMA ports of sysfs, InfiniBand and RoCE."""

    interval: Duration = Duration(5)
    exclude: tuple[str, ...] = ()
    """RDMA devices never to read, by name or PCI address; shell patterns."""


class EthtoolSection(SourceSection, frozen=True):
    """Statistics that drivers of network adapters keep themselves, of the interfaces that ``network`` reads."""

    interval: Duration = Duration(15)


class ServicesSection(SourceSection, frozen=True):
    """Services that the NVIDIA driver needs: fabric manager, persistence daemon, IMEX."""

    interval: Duration = Duration(30)


class KernelLogSection(SourceSection, frozen=True):
    """The kernel log: Xids of GPUs, SXids of NVSwitches, GPUs that were lost."""

    interval: Duration = Duration(5)
    path: Annotated[str, Meta(min_length=1)] = "/dev/kmsg"
    user_messages: bool = False
    """Take also lines that a program wrote into the log, for a rehearsal; else only those of the kernel count."""


def _check_rooted(paths: Iterable[str], what: str) -> None:
    for path in paths:
        if not path.startswith("/"):
            raise ValueError(f"paths: {path!r} does not begin with /; name {what} from the root")


class NcclLogsSection(SourceSection, frozen=True):
    """Logs of jobs: what NCCL, torch and launchers write about trouble."""

    interval: Duration = Duration(5)
    paths: tuple[str, ...] = ()
    """Files, folders and shell patterns, with %h and %p as NCCL_DEBUG_FILE takes them; empty: no log is read."""
    hosts: tuple[str, ...] = ()
    """Hosts whose lines count; shell patterns. Empty: of a log that several hosts write, the lines of this node."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rooted(self.paths, "logs")


class NcclInspectorSection(SourceSection, frozen=True):
    """Files of NCCL Inspector: the operations that jobs record of themselves."""

    interval: Duration = Duration(10)
    paths: tuple[str, ...] = ()
    """Folders, files and shell patterns, as of ``NcclLogsSection``; empty: nothing is read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rooted(self.paths, "folders")


class FlightRecorderSection(SourceSection, frozen=True):
    """Dumps of PyTorch's Flight Recorder, which a job writes when one of its collectives times out."""

    interval: Duration = Duration(15)
    """A dump is read when it has not changed for this time."""
    paths: tuple[str, ...] = ()
    """Folders, files and shell patterns, as TORCH_FR_DUMP_TEMP_FILE names them; empty: no dump is read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rooted(self.paths, "folders")


class NcclSettingsSection(SourceSection, frozen=True):
    """The NCCL settings of the processes on the GPUs, checked against the node."""

    interval: Duration = Duration(600)
    """Of an audit where no process has come or gone; one follows each change of the processes."""


class Sources(Section, frozen=True):
    """The sources, and how often they are read."""

    nvml: NvmlSection = field(default_factory=NvmlSection)
    network: NetworkSection = field(default_factory=NetworkSection)
    pci: PciSection = field(default_factory=PciSection)
    kernel_log: KernelLogSection = field(default_factory=KernelLogSection)
    rdma: RdmaSection = field(default_factory=RdmaSection)
    ethtool: EthtoolSection = field(default_factory=EthtoolSection)
    services: ServicesSection = field(default_factory=ServicesSection)
    nccl_logs: NcclLogsSection = field(default_factory=NcclLogsSection)
    nccl_inspector: NcclInspectorSection = field(default_factory=NcclInspectorSection)
    flight_recorder: FlightRecorderSection = field(default_factory=FlightRecorderSection)
    nccl_settings: NcclSettingsSection = field(default_factory=NcclSettingsSection)


class Otlp(Section, frozen=True):
    """The metrics for an OpenTelemetry collector."""

    endpoint: Url = ""
    """Its URL for OTLP over HTTP, without /v1/metrics, such as http://localhost:4318; empty: nothing is sent."""
    interval: Duration = Duration(15)

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError("interval must be at least 1s")
        if "@" in self.endpoint:
            raise ValueError("endpoint takes no name and password; give them by OTEL_EXPORTER_OTLP_HEADERS")


class Metrics(Section, frozen=True):
    profile: Literal["core", "standard", "all"] = "standard"
    """core: what the shipped rules and dashboards ask for; standard: all but ``opt_in``'s; all: these too."""
    opt_in: tuple[str, ...] = ()
    """Metrics to read and expose that are left out otherwise: they are many series (docs/reference/metrics.md)."""
    otlp: Otlp = field(default_factory=Otlp)

    @property
    def asked_for(self) -> frozenset[str]:
        """Those of ``OPT_IN`` that are read and exposed."""
        return OPT_IN if self.profile == "all" else frozenset(self.opt_in)

    def __post_init__(self) -> None:
        for name in self.opt_in:
            if name not in OPT_IN:
                elsewhere = "docs/reference/metrics.md marks those that can"
                hint = did_you_mean(name, sorted(OPT_IN), elsewhere, likeness=0.8)
                raise ValueError(f"opt_in: {name} is no metric that can be asked for; {hint}")


class Jobs(Section, frozen=True):
    """Labels and pages about the jobs on the GPUs."""

    identity: bool = False
    """Name the Slurm job or the Kubernetes pod on each GPU in a label, for all who may read the metrics."""
    hang_power: dict[Annotated[str, Meta(min_length=1)], Annotated[float, Meta(gt=0, le=1)]] = field(
        default_factory=lambda: {"H100": 0.45}
    )
    """By part of the name of a GPU: the share of its power limit below which its kernels only wait. Other models are
    compared with their own last hour."""
    ras: bool = False
    """Ask NCCL's RAS about a job that is suspected to be stuck, on the node of its rank 0."""


class Inventory(Section, frozen=True):
    """The parts that the node should have."""

    expected: dict[Literal["gpu", "nvlink", "pcie_lane", "rdma_port", "ethernet_port"], Annotated[int, Meta(ge=0)]] = (
        field(default_factory=dict)
    )
    """Parts by kind, over the whole node; kinds that are not named are learned."""
    learn_after: Duration = Duration(600)
    """How long a larger value must be stable before it is expected in later boots too."""


class Probe(Section, frozen=True):
    """One thing that is measured again and again."""

    measure: Literal[
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "all_to_all",
        "pairs",
        "host_copies",
        "scaling",
        "training",
    ] = "all_reduce"
    """A collective over all ranks; ``pairs``: send/recv of every two; ``host_copies``: between each GPU and the host;
    ``scaling``: all_reduce over 2, 4, 8, ... of them; ``training``: all_reduce of a bucket of gradients, alone and
    while the GPUs multiply matrices."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """auto: nccl where there are GPUs, gloo where there is no NVIDIA driver. A name keeps one backend for life."""
    ranks: Annotated[int, Meta(ge=0, le=64)] = 0
    """0: one per GPU, or two without GPUs."""
    gpus: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    """NVML indexes of the GPUs to use; empty: all."""
    interval: Duration = Duration(900)
    latency_bytes: Size = Size(8)
    bandwidth_bytes: Size = Size(0)
    """0: 64MiB with nccl, 4MiB with gloo; for pairs and host_copies 16MiB and 4MiB, for training
    25MiB and 4MiB."""
    expected_bandwidth: Rate | None = None
    """Bus bandwidth that this probe should give; else from the reference table, else learned, else from a model."""
    latency_limit: Duration | None = None
    """A small collective that takes longer is a spike, regardless of the baseline; without it a mark of the path
    counts."""

    def __post_init__(self) -> None:
        if self.interval < SHORTEST_PROBE_INTERVAL_SECONDS:
            raise ValueError(f"interval must be at least {SHORTEST_PROBE_INTERVAL_SECONDS:g}s")
        if len(set(self.gpus)) != len(self.gpus):
            raise ValueError("gpus names a GPU twice")


SHORTEST_PROBE_INTERVAL_SECONDS = 1.0
"""A cycle takes seconds."""

DAY = Duration(86400)

DEFAULT_PROBES: dict[str, Probe] = {
    "all_reduce": Probe(measure="all_reduce"),
    "pairs": Probe(measure="pairs", interval=DAY),
    "all_gather": Probe(measure="all_gather", interval=DAY),
    "reduce_scatter": Probe(measure="reduce_scatter", interval=DAY),
    "broadcast": Probe(measure="broadcast", interval=DAY),
    "all_to_all": Probe(measure="all_to_all", interval=DAY),
    "host_copies": Probe(measure="host_copies", interval=DAY),
    "scaling": Probe(measure="scaling", interval=DAY),
}
"""The probes that run without any configuration (docs/using/probes.md has the time that each takes)."""


class Probes(Section, frozen=True):
    """Active measurements, on a free node only."""

    enabled: bool = True
    gate: Literal["auto", "slurm", "kubernetes", "idle", "off"] = "auto"
    """The scheduler that must report the node as free; off: never probe."""
    slurm_node: str = ""
    """Name of this node in Slurm; empty: that of the running slurmd, else the host name up to the first dot."""
    kubelet_socket: Annotated[str, Meta(min_length=1)] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """Socket on which the kubelet reports the devices of its pods."""
    scheduler_deadline: Duration = Duration(5)
    """A scheduler that has not answered in this time is not known to be idle."""
    python: Annotated[str, Meta(pattern=r"^(/.*)?$")] = ""
    """Interpreter of ranks that need torch, from the root, such as /opt/site/bin/python; empty: the daemon's own."""
    start_delay: Duration = Duration(10)
    occupancy_limit: Annotated[float, Meta(gt=0, le=0.1)] = 0.01
    """Share of the GPUs' wall time in which probes may hold a context."""
    kernel_time: Duration = Duration(0.1)
    """GPU time that the timed calls of one cycle may take."""
    start_deadline: Duration = Duration(60)
    """Of all ranks together, until torch is imported; the next three from the time at which the last one got there."""
    rendezvous_deadline: Duration = Duration(30)
    setup_deadline: Duration = Duration(60)
    measure_deadline: Duration = Duration(30)
    definitions: dict[ProbeName, Probe] = field(default_factory=lambda: dict(DEFAULT_PROBES))
    """Beside the default ones: a file changes those that it names, and null takes one out."""

    def __post_init__(self) -> None:
        pairs = sorted(name for name, probe in self.definitions.items() if probe.measure == "pairs")
        if len(pairs) > 1:
            both = " and ".join(pairs)
            raise ValueError(f"definitions: {both} both measure pairs; a node has one pair matrix: null takes one out")


class Cluster(Section, frozen=True):
    """Settings for results that commwatch cluster probe and check send to the daemon of each node."""

    users: tuple[User, ...] = ()
    """Names or numbers of users whose results count, beside root and the daemon's own; the group of the state directory
    must let them reach the control socket."""
    interval: Duration = DAY
    """How often a run is meant to be made; a result expires after three of them."""

    def __post_init__(self) -> None:
        if self.interval < SHORTEST_CLUSTER_INTERVAL_SECONDS:
            raise ValueError(f"interval must be at least {SHORTEST_CLUSTER_INTERVAL_SECONDS:g}s")


SHORTEST_CLUSTER_INTERVAL_SECONDS = 60.0
"""A run takes seconds, and stops what else could run."""


class Config(Section, frozen=True):
    """Everything that can be set. Every setting has a working default."""

    web: Web = field(default_factory=Web)
    textfile: Textfile = field(default_factory=Textfile)
    paths: Paths = field(default_factory=Paths)
    log: Log = field(default_factory=Log)
    process: Process = field(default_factory=Process)
    simulation: Simulation = field(default_factory=Simulation)
    sources: Sources = field(default_factory=Sources)
    metrics: Metrics = field(default_factory=Metrics)
    jobs: Jobs = field(default_factory=Jobs)
    inventory: Inventory = field(default_factory=Inventory)
    probes: Probes = field(default_factory=Probes)
    cluster: Cluster = field(default_factory=Cluster)
    thresholds: str = ""
    """File of thresholds that replace the shipped ones (alerts/thresholds.yaml); the file need not be complete."""
    marks: str = ""
    """File of bandwidths that machines of the site have to reach: healthcheck --require and diagnose judge by it."""

    def __post_init__(self) -> None:
        if self.jobs.identity and not self.sources.nccl_settings.enabled:
            raise ValueError("jobs: identity needs the source nccl_settings, which looks at the processes: enable it")
