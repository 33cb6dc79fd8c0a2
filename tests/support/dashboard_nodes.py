"""Simulated nodes in a real Prometheus, of which dashboards are asked: healthy, with faults, NVLink 5, and peers."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Snapshot
from support.prometheus import Prometheus, prometheus, quick_rules
from support.simulated_daemon import STEP_SECONDS, SimulatedDaemon

HEALTHY, FAULTY, NVLINK_5 = "node1:28029", "node2:28029", "node3:28029"
EAST, WEST = "east", "west"
"""Clusters: in the second is the node with NVLink 5, in the first all others."""
ONE_GPU = "3"
"""Where there are faults, this GPU has faults of its NVLinks."""
PEERS = tuple(f"node{number}:28029" for number in range(4, 11))
"""Nodes like the healthy one, of which only what makes nodes comparable is stored."""

_LEARNING = [60.0 * minute for minute in range(1, 13)]
"""Twelve minutes, in which the inventory learns what is expected."""
_BASELINE = [_LEARNING[-1] + 900.0 * step for step in range(1, 25)]
"""Six hours, in which probes get their baseline; of their end there are some scrapes, for windows of an hour."""
_SCRAPED = [_BASELINE[-1] + STEP_SECONDS * step for step in range(1, 45)]
"""Eleven minutes as Prometheus scrapes them."""
_AHEAD_SECONDS = 300.0
"""At their end, which are in the future when the first node begins to be played: whenever the server is asked, however
slow the machine is, the last scrape was a moment ago."""
_KEPT_SECONDS = 5000.0 + _AHEAD_SECONDS
"""Of which there are scrapes at all."""
_FAST_SECONDS = 120.0 + _AHEAD_SECONDS
"""At the end, in which the node is also read a second before each scrape: the use of NVLink is a rate over a second."""
_CHANGE_SECONDS = 10.0
"""Between two changes of the generation of an idle GPU's PCIe link."""
_PEER_FAMILIES = (
    "commwatch_probe_info", "commwatch_probe_last_bus_bandwidth_bytes_per_second",
    "commwatch_probe_last_latency_seconds", "commwatch_gpu_info", "commwatch_simulated", "commwatch_maintenance",
)  # fmt: skip
_WAITS = {f"interval: {one}": "interval: 2s" for one in ("15s", "1m", "2m", "5m", "15m")} | {"for: 1m": "for: 1s"}
"""Of the rules. A group is evaluated for the first time somewhere within its interval."""
_STEADY = """
    count(ALERTS{alertstate="firing"}) == count(ALERTS{alertstate="firing"} offset 6s)
    and sum(job_fault:commwatch_nodes:count) == sum(job_fault:commwatch_nodes:count offset 6s)
"""
"""The alerts that fire at once do, and the fleet has counted them."""
_RULES_BEFORE_SCRAPES = {"storage": {"tsdb": {"out_of_order_time_window": "1h"}}}
"""The server takes what rules record although it has later scrapes already."""
_NAME = re.compile(r"\b(?:commwatch|process)_[a-z0-9_]+")

_FAULTS = """\
- {fault: slow_pair, gpu: 0, peer: 1, bandwidth: 0.3, latency: 3, at: 0s}
- {fault: slow_probe, latency: 4, bandwidth: 0.5, at: 4h}
- {fault: pcie_width, gpu: 1, lanes: 8, at: 357m}
- {fault: pcie_replay, gpu: 1, rate: 50/s, at: 357m}
- {fault: pcie_generation, gpu: 4, generation: 3, at: 357m}
- {fault: pcie_aer, gpu: 1, severity: correctable, error: BadTLP, rate: 10/s, at: 373m}
- {fault: nvlink_crc, gpu: 3, link: 2, rate: 200/s, at: 357m}
- {fault: nvlink_recovery, gpu: 3, link: 2, rate: 2/min, at: 357m}
- {fault: nvlink_replay, gpu: 3, link: 2, rate: 2/min, at: 357m}
- {fault: nvlink_slow, gpu: 2, link: 7, factor: 0.3, at: 357m}
- {fault: gpu_throttled, gpu: 4, reason: hw_thermal, at: 357m}
- {fault: rdma_port_down, device: mlx5_0, at: 357m}
- {fault: rdma_errors, device: mlx5_1, counter: symbol_error, rate: 10/min, at: 357m}
- {fault: rdma_errors, device: mlx5_1, counter: local_ack_timeout_err, rate: 60/min, at: 357m}
- {fault: rdma_saturated, device: mlx5_1, counter: excessive_buffer_overrun_errors, at: 357m}
- {fault: rdma_congestion, device: mlx5_2, rate: 500/s, at: 357m}
- {fault: rdma_congestion, device: mlx5_8, rate: 500/s, at: 357m}
- {fault: job, nvlink_utilization: 0.3, at: 370m}
- {fault: nccl_setting, variable: NCCL_BUFFSIZE, value: "65536", at: 370m}
- {fault: xid, gpu: 5, xid: 94, at: 373m, for: 1m}
- {fault: nvlink_down, gpu: 3, link: 5, at: 373m}
- {fault: p2p_broken, gpu: 2, at: 357m}
- {fault: fabric_unhealthy, gpu: 2, check: bandwidth, at: 373m}
- {fault: service_stopped, service: nvidia-persistenced, at: 373m}
- {fault: sxid, nvswitch: 0, sxid: 12028, link: 30, at: 373m}
- {fault: recovery_needed, gpu: 7, action: gpu_reset, at: 373m}
- {fault: gpu_lost, gpu: 6, at: 374m}
"""
_FAULTS_NVLINK_5 = """\
- {fault: nvlink_bit_errors, gpu: 3, link: 2, rate: 100/s, effective: 2.0e-11, at: 357m}
- {fault: nvlink_recovery, gpu: 3, link: 2, rate: 2/min, at: 357m}
- {fault: nvlink_packet_errors, gpu: 3, link: 2, counter: malformed, rate: 5/min, at: 357m}
"""


@dataclass(frozen=True)
class Page:
    """What one scrape of a node gave."""

    seconds: float
    """Before the last one."""
    samples: Sequence[tuple[str, str]]
    """Series with the labels of the daemon, and their values."""


def metrics_in(texts: Sequence[str]) -> set[str]:
    """The metrics that some expressions read, ours and those of the process."""
    return {name for text in texts for name in _NAME.findall(text)}


def play(preset: str, faults: str, wanted: set[str], folder: Path, end: float) -> list[Page]:
    """Let a node run until a time, and scrape it.

    Args:
        preset: the node.
        faults: YAML; times are since the boot.
        wanted: families that are kept.
        folder: for its files.
        end: seconds since 1970.
    """
    length, pages = _SCRAPED[-1], []
    with pytest.MonkeyPatch.context() as patched:
        daemon = SimulatedDaemon(
            preset, folder, patched, faults=faults, booted_at=end - length, change_seconds=_CHANGE_SECONDS
        )
        daemon.start()
        for at in (*_LEARNING, *_BASELINE, *_SCRAPED):
            if at > length - _FAST_SECONDS:
                daemon.step_to(at - 1)
            daemon.step_to(at)
            if at > length - _KEPT_SECONDS:
                started = ("process_start_time_seconds ", repr(end - length))
                pages.append(Page(length - at, [started, *_samples(daemon.exposed(), wanted)]))
        daemon.stop()
    return pages


def _samples(snapshot: Snapshot, wanted: set[str]) -> Iterator[tuple[str, str]]:
    for family in CATALOGUE:
        if family not in wanted and not any(f"{family}{suffix}" in wanted for suffix in ("_bucket", "_sum", "_count")):
            continue
        for block in snapshot.family_blocks(family):
            for place in block.layout.families[family]:
                if (value := block.values[place]) is not None:
                    yield block.layout.prefixes[place].strip(), repr(value)


def _lines(pages: Sequence[Page], instance: str, end: float, families: Sequence[str] = ()) -> Iterator[str]:
    target = f'cluster="{WEST if instance == NVLINK_5 else EAST}",job="commwatch",instance="{instance}"'
    for page in pages:
        at = f"{end - page.seconds:.3f}"
        yield f"up{{{target}}} 1 {at}\n"
        for series, value in page.samples:
            name, brace, labels = series.rstrip().partition("{")
            if not families or name in families:
                yield f"{name}{{{target}{',' + labels if brace else '}'} {value} {at}\n"


def write_pages(nodes: Mapping[str, Sequence[Page]], file: Path, end: float) -> None:
    """Write what was scraped as OpenMetrics, so that the last scrape was at a time."""
    with file.open("w", encoding="utf-8") as written:
        for instance, pages in nodes.items():
            written.writelines(_lines(pages, instance, end))
        for instance in PEERS:
            written.writelines(_lines(nodes[HEALTHY][-len(_SCRAPED) :], instance, end, _PEER_FAMILIES))
        written.write("# EOF\n")


@contextmanager
def prometheus_with_nodes(expressions: Sequence[str], folder: Path) -> Iterator[Prometheus]:
    """A server that scrapes the nodes, as far as it can see, and evaluates the shipped rules.

    Args:
        expressions: those that are to be asked; with the rules they say which families are stored.
        folder: for all files.
    """
    rules = quick_rules(_made(folder / "rules"), _WAITS)
    wanted = metrics_in([*expressions, *(file.read_text(encoding="utf-8") for file in rules)])
    end = time.time() + _AHEAD_SECONDS
    nodes = {
        HEALTHY: play("h100x8ndr", "", wanted, _made(folder / "healthy"), end),
        FAULTY: play("h100x8ndr", _FAULTS, wanted, _made(folder / "faulty"), end),
        NVLINK_5: play("b200x8", _FAULTS_NVLINK_5, wanted, _made(folder / "nvlink5"), end),
    }
    file = folder / "scraped.om"
    write_pages(nodes, file, end)
    done = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "data")],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"promtool did not take what was scraped: {done.stdout}{done.stderr}")
    with prometheus(folder, rules, interval="2s", settings=_RULES_BEFORE_SCRAPES) as server:
        # Rules that read what others record need a second turn.
        server.until(lambda: server.query('ALERTS{alertname="CommwatchNvlinkDown", alertstate="firing"}'))
        server.until(lambda: server.query("instance_probe:commwatch_probe_latency_per_peers:ratio"))
        server.until(lambda: server.query(_STEADY))
        yield server


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
