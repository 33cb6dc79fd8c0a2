"""Files that users and earlier daemons wrote."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import pytest
from benchmarks.fuzz import ROOT
from benchmarks.fuzz.target import Check, Target

from commwatch.cluster.locate import locate
from commwatch.cluster.run_file import Run, RunUnreadable, grouped, read_groups, read_members, read_run
from commwatch.commands.cluster_locate import document_of, lines_of
from commwatch.config.settings import section_json
from commwatch.config.thresholds import load_thresholds
from commwatch.config.web import read_web_config
from commwatch.config.yaml_file import load_config
from commwatch.diagnosis.marks.floors import read_floors
from commwatch.errors import ConfigError
from commwatch.lines import plain, printable
from commwatch.state.records import LARGEST_NUMBER
from commwatch.views.heatmap.compare import compare, view_of_comparison
from commwatch.views.heatmap.document import BadMatrix, parse_matrix
from commwatch.views.heatmap.matrix_view import view_of
from commwatch.views.heatmap.svg import matrix_svg
from commwatch.views.heatmap.text import heatmap_lines
from commwatch_rehearsal.simulation.faults.parse import parse_faults
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.node_file import read_node
from commwatch_rehearsal.simulation.presets import PRESETS
from heatmap.matrices import matrix
from support.simulated_daemon import rehearsed
from support.state_files import unsealed

_YAML: Final = (
    b": ", b"- ", b"\n  ", b"{", b"}", b"[", b"]", b"|\n", b"'", b'"', b"&a", b"*a", b"<<: *a\n", b"? ", b"#",
    b"---\n", b"...\n", b"%YAML 9.9\n", b"!!python/name:os.system ", b"!!int ", b"!!binary ", b"null", b"1_000",
    b"1:30", b"0o17", b".inf", b".nan", b"2026-01-01", b"1h", b"-1s", b"1e400s", b"10%", b"5GB/s", b"1d",
)  # fmt: skip


def reading(name: str, read: Callable[[Path], object]) -> Callable[[Path], AbstractContextManager[Check]]:
    """A target that gives each input as a file."""

    @contextmanager
    def start(folder: Path) -> Iterator[Check]:
        file = folder / name

        def check(data: bytes) -> None:
            file.write_bytes(data)
            file.chmod(0o640)
            with suppress(ConfigError):
                read(file)

        yield check

    return start


def _shipped(*patterns: str) -> Callable[[], Sequence[bytes]]:
    return lambda: [file.read_bytes() for pattern in patterns for file in sorted(ROOT.glob(pattern))]


# --- YAML ---

_CONFIGURATIONS: Final = (
    b"probes:\n  definitions:\n    mine: {measure: all_reduce, interval: 1h}\n"
    b"    pairs: {measure: pairs, enabled: false}\n"
    b"inventory: {expected: {gpu: 8}, learn_after: 90s}\nsimulation: {preset: h100x8}\n",
    b"sources: {nccl_logs: {paths: [/var/log/job.log], hosts: [gpu*]}, network: {include: [eth0]}}\n"
    b"web: {listen_addresses: ['127.0.0.1:9000', '[::1]:9000'], telemetry_path: /m}\nlog: {level: debug}\n",
)
_FLOORS: Final = (
    b"floors:\n  - gpu: NVIDIA L4\n    gpus: 8\n    measure: all_reduce bus bandwidth, 64 MiB, 8 GPUs\n"
    b"    at_least: 5GB/s\n    origin: 3 nodes\n",
)
_WEB: Final = (
    b"basic_auth_users:\n  me: $2y$10$RgIWuDZbPYCUTzJEbbTnLuRyNlWbB1TVlkZVKWzwtwTIk8hJnvBHG\n",
    b"rate_limit: {interval: 1s, burst: 5}\nhttp_server_config:\n  headers: {X-Frame-Options: deny}\n  http2: false\n",
    b"tls_server_config:\n  cert_file: node.pem\n  key_file: node.key\n  min_version: TLS13\n"
    b"  curve_preferences: [X25519]\n",
    b"tls_server_config: {cert: '-----BEGIN CERTIFICATE-----', key: '-----BEGIN PRIVATE KEY-----'}\n",
)
_NODES: Final = (
    b"like: h100x8\ngpus: 3\n"
    b"gpu: {name: H100, memory: 80GB, pcie_generation: 5, pcie_width: 16, power_limit_watts: 700}\n"
    b"nvlink: {links: 4, remote: gpu}\nnuma: [0, 0, 1]\ndriver_version: '570.86.15'\n",
    b"like: a10x2\nnics:\n- {speed: 400, interface: eth0, rdma: mlx5_0, near_gpu: 1, bond: bond0}\n"
    b"- {speed: 200, rdma: mlx5_1, numa: 1, pcie_width: 8}\n",
)
_THRESHOLDS: Final = (
    b"pcie_replays_per_hour: {value: 10, unit: count, origin: ours}\nlatency_spike_ratio: {value: 1.5}\n",
)


def _read_config(file: Path) -> None:
    config = load_config(file)
    section_json(config.sources)
    for name in (*config.probes.definitions, config.web.telemetry_path):
        assert name.isprintable(), f"{name!r} is no name of a probe or path"


def _read_node(file: Path) -> None:
    """What is made of it is of use as a node."""
    preset = read_node(file)
    SimulatedNode(str(file), None, 1e9, lambda: 1e9 + 100)
    for name in (*(one.name for one in preset.interfaces), *(one.device for one in preset.rdma_ports)):
        assert name.isprintable(), f"{name!r} is no name of a folder"
        assert name not in (".", ".."), f"{name!r} is another folder"


def _read_faults(file: Path) -> None:
    with suppress(UnicodeDecodeError):  # its reader says so before
        parse_faults(file.read_text(encoding="utf-8"), str(file), PRESETS["h100x8ndr"], 1e9, 1e9 + 50)


def _faults() -> Sequence[bytes]:
    from commwatch_rehearsal.simulation.faults.kinds import KINDS

    return [f"- {{fault: {name}, {kind.example}}}\n".encode() for name, kind in KINDS.items()]


# --- JSON and lines of a cluster ---


@contextmanager
def _cluster_run(folder: Path) -> Iterator[Check]:
    file, leaves = folder / "run.json", folder / "leaves.txt"
    leaves.write_text("gpu01 leaf0\nn0 leaf0\nn1 leaf1\n")

    def check(data: bytes) -> None:
        file.write_bytes(data)
        with suppress(RunUnreadable):
            saved = read_run(file)
            _tell(saved)
            _tell(grouped(saved, read_groups(leaves), leaves))

    yield check


def _tell(run: Run) -> None:
    """All that is said of a run can be written."""
    found = locate(run)
    msgspec.json.encode(document_of(found))
    "\n".join(map(printable, lines_of(run, found))).encode()


@contextmanager
def _cluster_groups(folder: Path) -> Iterator[Check]:
    file = folder / "leaves"

    def check(data: bytes) -> None:
        file.write_bytes(data)
        with suppress(RunUnreadable):
            read_groups(file)
        with suppress(RunUnreadable):
            read_members(str(file))

    yield check


@contextmanager
def _matrix(folder: Path) -> Iterator[Check]:
    """A saved pair matrix, drawn, and compared with a good one."""
    good = matrix(3)

    def check(data: bytes) -> None:
        with suppress(BadMatrix):
            given = parse_matrix(data, "pairs.json")
            views = [view_of(given, quantity, relative=False, low_ratio=0.6) for quantity in ("bandwidth", "latency")]
            views.append(view_of_comparison(compare(good, given, "bandwidth"), good, given))
            for view in views:
                matrix_svg(view).encode()
                "\n".join(plain(line) for line in heatmap_lines(view, coloured=False, width=100)).encode()

    yield check


# --- state ---

_NODE: Final = "a10x2"
_HAPPENED: Final = "- {fault: xid, gpu: 1, xid: 79, at: 10m}\n"
_JOB_LOG: Final = "2026-01-01T10:05:00 node1: NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
_KEPT_MINUTES: Final = 20.0


@cache
def _state() -> dict[str, bytes]:
    """What a daemon has kept that has probed, seen a fault and read a job's log; by the name of the file.

    Without check sums, which would find every change before anything is read.
    """
    with (
        TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patched,
        rehearsed(_NODE, Path(folder), patched, _HAPPENED, _JOB_LOG) as daemon,
    ):
        daemon.until(_KEPT_MINUTES)
        daemon.probe()
        daemon.save()
        kept = sorted(daemon.state.path.glob("*.json"))
        return {file.name: msgspec.json.encode(unsealed(file.read_bytes())) for file in kept}


def _state_seeds() -> Sequence[bytes]:
    return [b"%c" % (65 + place) + content for place, content in enumerate(_state().values())]


@contextmanager
def _state_files(folder: Path) -> Iterator[Check]:
    """The first byte says which file; the rest is what stands in it."""
    kept = _state()

    def check(data: bytes) -> None:
        shutil.rmtree(folder / "state", ignore_errors=True)
        with pytest.MonkeyPatch.context() as patched:
            state = folder / "state" / f"simulated-{_NODE}"
            state.mkdir(parents=True)
            for name, content in kept.items():
                (state / name).write_bytes(content)
            name = list(kept)[(data[0] if data else 0) % len(kept)]
            (state / name).write_bytes(data[1:])
            with rehearsed(_NODE, folder, patched, _HAPPENED, _JOB_LOG) as daemon:
                daemon.time = 60.0 * _KEPT_MINUTES
                if not (state / name).exists() and not name.startswith("probe"):
                    return  # set aside
                daemon.until(_KEPT_MINUTES + 0.5)
                daemon.probe(*([name.removeprefix("probe-").removesuffix(".json")] if name.startswith("probe") else []))
                daemon.save()
                assert not daemon.verdict.failing_rules, daemon.verdict.failing_rules
                values = [value or 0 for block in daemon.snapshot().blocks for value in block.values]
                assert all(abs(one) <= LARGEST_NUMBER for one in values), "a number is out of range"

    yield check


FILES: Final = (
    Target("web_file", reading("web.yml", read_web_config), lambda: _WEB, _YAML),
    Target(
        "config",
        reading("commwatch.yaml", _read_config),
        lambda: [*_CONFIGURATIONS, *_shipped("systemd/commwatch.yaml")()],
        _YAML,
    ),
    Target("thresholds", reading("thresholds.yaml", load_thresholds), lambda: _THRESHOLDS, _YAML),
    Target("marks", reading("marks.yaml", read_floors), lambda: _FLOORS, _YAML),
    Target("node_file", reading("node.yaml", _read_node), lambda: _NODES, _YAML),
    Target("faults", reading("faults.yaml", _read_faults), _faults, _YAML),
    Target("cluster_run", _cluster_run, _shipped("docs/using/cluster/*.json"), form="json"),
    Target(
        "cluster_groups",
        _cluster_groups,
        lambda: [
            b"# leaves\nnode0 leaf0\nnode1 leaf1\n",
            b'{"items": [{"metadata": {"name": "n", "labels": {"network.topology.nvidia.com/leaf": "leaf0"}}}]}',
            b"node0,node1 node2\n",
        ],
    ),
    Target("matrix", _matrix, lambda: [msgspec.json.encode(matrix(3))], form="json"),
    Target("state", _state_files, _state_seeds, form="json", head=1),
)
