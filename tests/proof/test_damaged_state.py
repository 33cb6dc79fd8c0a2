"""State files that are damaged, or well-formed and wrong: the daemon starts, and alarms nobody for a file alone."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.cluster.between_nodes import BetweenNodes
from commwatch.cluster.node_record import NodeHistory
from commwatch.config.settings import Cluster
from commwatch.diagnosis.health.counts import count_unknown, read_counts
from commwatch.node.wrap import Wrapped, WrapsState
from commwatch.probes.by_hand.trial import SettingTrials, known_trials
from commwatch.probes.gate.hold import HoldFile
from commwatch.service.judgement import STATE_NAME, Judgement
from commwatch.sources.presence import boot_identity
from commwatch.state.directory import StateDirectory
from commwatch.state.maintenance import MaintenanceFile
from commwatch.state.records import LARGEST_NUMBER
from commwatch.state.simulation_start import SimulationStart
from commwatch_exporters.catalogue import family_of
from support.daemon import running
from support.mutated_files import FORMS, mutated, places
from support.simulated_daemon import SimulatedDaemon, rehearsed
from support.state_files import unsealed
from support.state_records import record

FILES_OF_A_START = 5
REAL_STARTS = 20
SEED = 21
END_MINUTES = 200.0
"""All faults and what they leave behind are over: the node is healthy."""
JOB_LOG = "\n".join(
    f"2026-01-01T10:{minute:02}:00 node1: NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"
    for minute in range(5, 40)
)
SLOW = "- {fault: slow_probe, latency: 4, bandwidth: 0.5, at: 14m, for: 20m}"
NODES: dict[str, tuple[int, str]] = {
    "a10x2": (1400, f"""
- {{fault: xid, gpu: 1, xid: 94, at: 10m, for: 1m}}
- {{fault: pcie_replay, gpu: 0, rate: 5/s, at: 20m, for: 3m}}
{SLOW}
"""),
    "a100x4": (500, f"""
- {{fault: xid, gpu: 1, xid: 94, at: 10m, for: 1m}}
- {{fault: nvlink_crc, gpu: 0, link: 2, rate: 200/s, at: 20m, for: 3m}}
{SLOW}
"""),
    "h100x8ndr": (100, f"""
- {{fault: sxid, nvswitch: 0, sxid: 12028, link: 30, at: 12m, for: 1m}}
- {{fault: nvlink_down, gpu: 2, link: 3, at: 20m, for: 3m}}
- {{fault: rdma_port_down, device: mlx5_0, at: 21m, for: 20s}}
{SLOW}
"""),
}  # fmt: skip
"""By simulated node: how many of its state files are damaged, and the faults that it had."""
BY_HAND = ("hold.json", "healthcheck.json", "setting-trials.json")
"""Kept by commands, which set nothing aside."""
EXPECTED_PARTS = frozenset({"gpu_missing", "pcie_width_dropped", "nvlink_down", "rdma_port_down"})
"""What an inventory with a check sum that fits, or without one, can raise: it alone says which parts there were. One
that names another card says that this card is gone, and nobody can know better."""
WRONG: tuple[Any, ...] = (
    -1, 0, 0.5, 4e9, 253402300800.0, 1e18, 2**63, 2**64, 10**30, 1e300, -1e300, 10**400, True, None, "", "x", "\0",
    [], [0], {}, {"": 0},
)  # fmt: skip
"""What JSON can hold and a field may not."""


class Kept(NamedTuple):
    """The state of a daemon that has probed, had faults and read a job's log."""

    node: str
    faults: str
    state: Path

    @contextmanager
    def daemon(self, folder: Path) -> Iterator[SimulatedDaemon]:
        """A daemon with a state in this folder, on the node as it is when all is over."""
        with (
            pytest.MonkeyPatch.context() as patched,
            rehearsed(self.node, folder, patched, self.faults, JOB_LOG) as daemon,
        ):
            yield daemon


@pytest.fixture(scope="module", params=NODES)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    node: str = request.param
    folder = tmp_path_factory.mktemp("kept")
    found = Kept(node, NODES[node][1], folder)
    with found.daemon(folder) as daemon:
        for minutes in (15.0, 30.0, 45.0):
            daemon.until(minutes)
            daemon.probe()
        for minutes in (END_MINUTES - 20, END_MINUTES - 10, END_MINUTES):
            daemon.until(minutes, step=120.0)
            daemon.probe()
        daemon.save()
        _save_what_no_probe_makes(daemon)
        assert _alarms(daemon) == set()
        return found._replace(state=daemon.state.path)


def _save_what_no_probe_makes(daemon: SimulatedDaemon) -> None:
    """A run between nodes, settings that were tried, a hold that is over, and a counter that has wrapped."""
    state, now = daemon.state, time.time()
    cluster = record(NodeHistory)
    assert cluster.last is not None
    assert cluster.check is not None
    run = msgspec.structs.replace(cluster.last, finished_at=now)
    check = msgspec.structs.replace(cluster.check, finished_at=now)
    state.save("cluster", msgspec.structs.replace(cluster, last=run, check=check))
    state.save("setting-trials", record(SettingTrials))
    HoldFile(state.path).hold(1.0, now)
    count_unknown(state.path, "stale")
    judgement = state.load(STATE_NAME, Judgement)
    assert judgement is not None
    for port, block in daemon.store.group("rdma").items():
        wrapped = [Wrapped(one, 7, 2**32) for one in block.layout.series if family_of(one[0]).wraps_at == 2**32]
        if wrapped:
            wraps = WrapsState(boot_identity(daemon.roots[1]), {"rdma": {port: wrapped[:3]}})
            state.save(STATE_NAME, msgspec.structs.replace(judgement, wraps=wraps))


def _damaged(draw: random.Random, content: bytes) -> tuple[bytes, str]:
    """A state file after damage of a disk, of memory or of another version, and in words what was done to it."""
    damage = draw.choice(("value", "bits", "cut", "tail", "foreign"))
    if damage == "value":
        document = unsealed(content)
        way, wrong = draw.choice(list(places(document))), draw.choice(WRONG)
        way[1][way[2]] = wrong
        return json.dumps(document).encode(), f"{way[0]} = {wrong!s:.30}"
    if damage == "foreign":  # of a version that names its fields otherwise and has others
        document = unsealed(content)
        named = {f"{name}_v2" if draw.random() < 0.3 else name: value for name, value in document.items()}
        return json.dumps({"version": 99, "schema": {"of": [1]}, **named}).encode(), f"{list(named)}"
    place = draw.randrange(len(content))
    if damage == "cut":
        return content[:place], f"after {place} bytes"
    if damage == "tail":  # as a file system leaves it that lost the last blocks, or gave those of another file
        return content[:place] + draw.choice((bytes(4096), draw.randbytes(4096), content)), f"from byte {place} on"
    flipped = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(flipped), f"{sum(a != b for a, b in zip(content, flipped, strict=True))} bytes"


def _alarms(daemon: SimulatedDaemon) -> set[str]:
    """Codes of the critical findings that are open."""
    return {one.code for one in daemon.verdict.findings if one.severity == "critical"}


def _trouble(kept: Kept, folder: Path, contents: dict[str, tuple[str, bytes, str]]) -> list[str]:
    """What goes wrong in a daemon that finds these among its state files; empty where nothing does.

    Args:
        kept: its node.
        folder: for its files.
        contents: by name of the file: form, what it holds, and what was done to it.
    """
    state = folder / "state" / kept.state.name
    shutil.copytree(kept.state, state)
    for name, (_, content, _) in contents.items():
        (state / name).write_bytes(content)
    found: list[str] = []
    try:
        with capture_logs() as events, kept.daemon(folder) as daemon:
            daemon.time = 60.0 * END_MINUTES
            between_nodes = BetweenNodes(Cluster(), daemon.state, daemon.store)
            between_nodes.refresh()
            assert daemon.state.path == state
            known_trials(daemon.config), read_counts(state), MaintenanceFile(state).read(0.0), HoldFile(state).read()
            daemon.until(END_MINUTES + 3)
            alarms = _alarms(daemon)
            daemon.probe()
            daemon.save()
            alarms |= _alarms(daemon)
            if contents.get("inventory.json", ("damaged",))[0] != "damaged":
                alarms -= EXPECTED_PARTS
            found += [f"alarms: {code}" for code in sorted(alarms)]
            found += [f"rules fail: {sorted(daemon.verdict.failing_rules)}"] if daemon.verdict.failing_rules else []
            for block in daemon.snapshot().blocks:
                for (metric, labels), value in zip(block.layout.series, block.values, strict=True):
                    if not 0 <= (value or 0) <= LARGEST_NUMBER:
                        found.append(f"{metric} is {value}")
                    if not all(label.isprintable() and len(label) <= 256 for label in labels):
                        found.append(f"{metric} has {labels!a:.80}")
        warned = [event for event in events if event["log_level"] != "info"]
        for name, (form, _, _) in contents.items():
            of_file = [event for event in warned if str(state / name) == event.get("file")]
            aside = list(state.glob(f"{Path(name).stem}.damaged-*"))
            if form == "damaged" and name not in BY_HAND and len(aside) != 1:
                found.append(f"{name} was believed")
            if len(of_file) > 1:
                found.append(f"{name}: {len(of_file)} warnings")
    except Exception as error:
        found.append(repr(error))
    finally:
        shutil.rmtree(folder)
    return found


def test_damaged_files(kept: Kept, tmp_path: Path) -> None:
    """Flipped bits, lost ends, numbers that are huge, and a change of meaning with and without a check sum that fits:
    what makes no sense is set aside, and of what does nothing is alarming while the node is well."""
    draw = random.Random(SEED)  # noqa: S311  no secret
    originals = {file.name: file.read_bytes() for file in sorted(kept.state.glob("*.json"))}
    assert len(originals) >= 12, sorted(originals)
    found = []
    for start in range(NODES[kept.node][0] // FILES_OF_A_START):
        contents = {}
        for name in draw.sample(sorted(originals), FILES_OF_A_START):
            form = draw.choice(("disk", *FORMS))
            change = _damaged(draw, originals[name]) if form == "disk" else mutated(draw, originals[name], form)
            contents[name] = (form, *change)
        if trouble := _trouble(kept, tmp_path / str(start), contents):
            done = [f"{name} {form} {words}" for name, (form, _, words) in contents.items()]
            found.append("\n    ".join([f"start {start}: {trouble}", *done]))

    assert not found, "\n".join(found)


def test_a_sample_under_a_real_daemon(kept: Kept, tmp_path: Path) -> None:
    """The process itself is ready, serves its page, and ends on TERM; each file costs one warning at most."""
    if kept.node != "a10x2":
        pytest.skip("one node is enough")
    draw = random.Random(SEED)  # noqa: S311  no secret
    originals = {file.name: file.read_bytes() for file in sorted(kept.state.glob("*.json"))}
    for start in range(REAL_STARTS):
        folder = tmp_path / str(start)
        state = folder / "state" / kept.state.name
        shutil.copytree(kept.state, state)
        StateDirectory(state).save("simulation", SimulationStart(time.time() - 3600.0))
        names = sorted({*draw.sample(sorted(originals), FILES_OF_A_START), "simulation.json"})
        for name in names:
            content = (state / name).read_bytes()
            changed, _ = mutated(draw, content, draw.choice(FORMS))
            (state / name).write_bytes(changed)
        with running(folder, "--simulate", kept.node) as daemon:
            assert daemon.get("/metrics")[0] == 200
            assert daemon.stop() == 0
        text = daemon.log_file.read_text()
        assert "Traceback" not in text
        warned = [event["file"] for event in daemon.events("a state file is damaged and set aside")]
        assert len(warned) == len(set(warned))
