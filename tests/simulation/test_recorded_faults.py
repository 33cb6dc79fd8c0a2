"""Faults on a recording change the same samples as on the simulated node that was recorded, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.config.settings import Config, Probe, Probes
from commwatch.errors import ConfigError
from commwatch.probes.gate.decision import GateFacts, decide
from commwatch.probes.workload import plan_cycle
from commwatch.sources import files
from commwatch_rehearsal.drill.catalogue import fitted, load_drills
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.presets import PRESETS, find_preset
from commwatch_rehearsal.simulation.presets.parts import Preset
from commwatch_rehearsal.simulation.probe_answers import SimulatedProbes
from commwatch_rehearsal.simulation.recording.faulty_parts import laid
from commwatch_rehearsal.simulation.recording.file import read_recording
from commwatch_rehearsal.simulation.recording.lines import Call, File, Folder
from commwatch_rehearsal.simulation.recording.node import RecordedNode
from support.command_line import run_command
from support.daemon import command
from support.pages import page_of
from support.passes import in_one_pass
from support.recorded import whole
from support.simulated_daemon import rehearsed

RECORDINGS = Path(__file__).parents[1] / "recordings"
BEGINS, LOOKS = 100.0, (0.0, 60.0, 120.0)
"""Monotonic seconds at which a recording begins to play, and when the page is read after that."""
FAULTS = """
- {{fault: nvlink_crc, gpu: 0, link: 2, rate: 1/s, at: {0}s, for: 30s}}
- {{fault: nvlink_down, gpu: 1, link: 5, at: {0}s, for: 40s}}
- {{fault: pcie_width, gpu: 3, lanes: 8, at: {0}s, for: 40s}}
- {{fault: gpu_throttled, gpu: 3, at: {0}s, for: 40s}}
- {{fault: p2p_broken, gpu: 3, at: {0}s, for: 40s}}
- {{fault: recovery_needed, gpu: 2, at: {0}s, for: 40s}}
- {{fault: xid, gpu: 0, xid: 94, at: {0}s, for: 40s}}
- {{fault: pcie_aer, nic: enp225s0f0np0, severity: correctable, error: BadTLP, rate: 2/s, at: {0}s, for: 30s}}
- {{fault: ethernet_symbol_errors, interface: enp225s0f0np0, rate: 2/s, at: {0}s, for: 30s}}
- {{fault: service_stopped, service: nvidia-persistenced, at: {0}s, for: 40s}}
"""
UNSTEADY = ("commwatch_nvlink_sibling_bytes", "commwatch_nvlink_receive_bytes", "commwatch_nvlink_transmit_bytes",
            "commwatch_nvlink_slowest_link")  # fmt: skip
"""What traffic moves: a recording that is over has none."""


@pytest.fixture
def looks(tmp_path: Path) -> Callable[[str, str], list[dict[str, str]]]:
    """The samples of a node at each look."""

    def read(node: str, faults: str) -> list[dict[str, str]]:
        folder, pages = tmp_path / str(len([*tmp_path.iterdir()])), []
        folder.mkdir()
        with (
            pytest.MonkeyPatch.context() as patched,
            rehearsed(node, folder, patched, faults, booted_at=1.8e9, time_now=BEGINS) as daemon,
        ):
            for after in LOOKS:
                daemon.time = BEGINS + after
                daemon.run()
                lines = page_of(daemon.snapshot()).decode().splitlines()
                pages.append(dict(line.rsplit(" ", 1) for line in lines if line.startswith("commwatch_")))
        return pages

    return read


def recording(preset: str) -> str:
    return str(RECORDINGS / f"{preset}.cwrec")


def changes(healthy: dict[str, str], faulty: dict[str, str]) -> dict[str, object]:
    """What faults have changed: the new value of each sample, of a counter what it has counted more."""
    found: dict[str, object] = {}
    for name in sorted({*healthy, *faulty}):
        before, now = healthy.get(name), faulty.get(name)
        if before != now and not name.startswith(UNSTEADY):
            counts = "_total{" in name and before is not None and now is not None
            found[name] = float(now or 0) - float(before or 0) if counts else now
    return found


def test_faults_change_the_samples_of_a_recording_as_those_of_its_node(
    looks: Callable[[str, str], list[dict[str, str]]],
) -> None:
    """While they hold and after their end; before them nothing differs."""
    node, played = looks("a100x4", ""), looks(recording("a100x4"), "")
    faulty_node = looks("a100x4", FAULTS.format(int(BEGINS) + 30))
    faulty_played = looks(recording("a100x4"), FAULTS.format(30))
    assert faulty_played[0] == played[0]
    for look in (1, 2):
        expected = changes(node[look], faulty_node[look])
        assert changes(played[look], faulty_played[look]) == expected
        assert len(expected) > 10


def test_a_card_that_a_fault_takes_away_is_gone_and_comes_back(
    looks: Callable[[str, str], list[dict[str, str]]],
) -> None:
    """The node boots twice: in between it has one GPU fewer, and afterwards all that it had."""
    played = looks(recording("a10x2"), "- {fault: gpu_missing, gpu: 0, at: 30s, for: 40s}")
    gpus = [
        {name.partition('pci_bus_id="')[2][:12] for name in page if name.startswith("commwatch_gpu_temperature")}
        for page in played
    ]
    assert gpus == [{"0000:17:00.0", "0000:99:00.0"}, {"0000:99:00.0"}, {"0000:17:00.0", "0000:99:00.0"}]
    assert [page['commwatch_present{kind="gpu"}'] for page in played] == ["2", "1", "2"]


def test_a_fault_that_holds_no_more_leaves_the_files_as_they_were_recorded(
    tmp_path: Path, replay: Callable[..., RecordedNode]
) -> None:
    """Of an RDMA port that was down, not readable, counted, and reset; an event counts on from the recorded one."""
    clock = [0.0]
    (tmp_path / "faults.yaml").write_text(
        "- {fault: rdma_port_down, device: mlx5_0, at: 10s, for: 10s}\n"
        "- {fault: rdma_read_error, device: mlx5_1, at: 10s, for: 10s}\n"
        "- {fault: rdma_errors, device: mlx5_2, counter: symbol_error, rate: 1/s, at: 10s, for: 5s}\n"
        "- {fault: rdma_counter_reset, device: mlx5_3, at: 10s}\n"
        "- {fault: rdma_saturated, device: mlx5_4, counter: link_downed, at: 10s, for: 10s}\n"
    )
    node = replay(Path(recording("h100x8ndr")), tmp_path / "faults.yaml", 0.0, lambda: clock[0])

    def read(device: int, name: str) -> str:
        node.write_sysfs(tmp_path / "sys")
        try:
            return files.read(f"{tmp_path}/sys/class/infiniband/mlx5_{device}/ports/1/{name}").decode().strip()
        except OSError as error:
            return error.strerror or ""

    asked = [(0, "state"), (0, "counters/link_downed"), (1, "counters/port_xmit_data"), (2, "counters/symbol_error"),
             (3, "counters/port_rcv_data"), (4, "counters/link_downed")]  # fmt: skip

    def look(age: float) -> list[str]:
        clock[0] = age
        return [read(*one) for one in asked]

    answers = [look(age) for age in (5.0, 12.5, 25.0)]
    sent, received = answers[0][2], answers[0][4]
    assert min(int(sent), int(received)) > 0
    assert answers == [
        ["4: ACTIVE", "0", sent, "0", received, "0"],
        ["1: DOWN", "1", "Input/output error", "3", "0", "255"],
        ["4: ACTIVE", "1", sent, "6", "0", "0"],
    ]


@in_one_pass(
    "faulty, reset, stops, count",
    [
        (0, 0.0, [], 2000),
        (7, 0.0, [], 2007),
        (7, 40.0, [], 607),
        (0, 0.0, [(20.0, 50.0)], 1700),
        (0, 40.0, [(20.0, 50.0)], 500),
        (0, 0.0, [(20.0, 50.0), (90.0, float("inf"))], 1600),
        (0, 0.0, [(120.0, 150.0)], 2000),
    ],
)
def test_a_recorded_counter_goes_on_but_for_resets_and_stops(
    faulty: int, reset: float, stops: list[tuple[float, float]], count: int
) -> None:
    """One that stood at 1000 when the recording began, and counts ten a second; a fault adds its events."""
    assert laid(lambda age: 1000 + round(10 * age), faulty, lambda _age: 0, 100.0, reset, stops) == count


def test_a_recording_shows_the_parts_of_the_node() -> None:
    """All but the names that it replaces and the traffic of the simulation, which is in the recorded answers."""

    def bare(preset: Preset) -> Preset:
        model = replace(preset.model, pcie_background_bytes_per_second=0.0)
        if model.nvlink is not None:
            rate = model.nvlink.line_rate_megabytes_per_second if model.nvlink.remote != "none" else 0
            quiet = replace(model.nvlink, background_bytes_per_second=0.0, line_rate_megabytes_per_second=rate)
            model = replace(model, nvlink=quiet)
        return replace(
            preset,
            model=model,
            gpus=tuple(replace(gpu, uuid="", serial="") for gpu in preset.gpus),
            devices=tuple(sorted(preset.devices, key=lambda device: device.address)),
            interfaces=tuple(replace(one, background_bytes_per_second=0.0) for one in preset.interfaces),
            rdma_ports=tuple(replace(one, background_bytes_per_second=0.0) for one in preset.rdma_ports),
            wires=None,
        )

    for name, preset in PRESETS.items():
        shown = find_preset(recording(name))
        assert bare(shown) == bare(preset)
        assert all(preset.peer(*link) == end for link, end in (shown.wires or {}).items())


GPU: Any = [
    {"function": "nvmlDeviceGetHandleByIndex_v2", "arguments": [0, "=handle"], "memory": [None, "1"]},
    {"function": "nvmlDeviceGetPciInfo_v3", "arguments": [1, "=68"], "memory": [None, "00" * 20 + "17"]},
]
SYS: Any = {"is": "folder", "at": 0, "root": "sys"}
SYS_FILE: Any = {**SYS, "is": "file"}
OTHER_GPU: Any = [
    {"function": "nvmlDeviceGetHandleByIndex_v2", "arguments": [1, "=handle"], "memory": [None, "2"]},
    {"function": "nvmlDeviceGetPciInfo_v3", "arguments": [2, "=68"], "memory": [None, "00" * 20 + "18"]},
]
GPU_AT, OTHER_AT = "0000:17:00.0", "0000:18:00.0"
PLACE = "devices/pci0000:16/0000:16:01.0/0000:17:00.0"


def node_file(places: dict[str, str], *more: dict[str, Any]) -> bytes:
    """A recording of one GPU, in these places of its bus."""
    calls = [{"is": "nvml", "at": 0, "code": 0, **one} for one in (*GPU, *more)]
    return whole(*calls, {"is": "folder", "at": 0, "root": "sys", "path": "bus/pci/devices", "entries": places})


UNUSABLE: dict[str, tuple[bytes, str]] = {
    "no GPU": (whole(), "its driver lists no GPU"),
    "GPU without a place": (node_file({}), "its /sys does not show where GPU 0000:17:00.0 is"),
    "below itself": (node_file({"0000:17:00.0": f"{PLACE}/0000:17:00.0"}), "where 0000:17:00.0 is"),
    "GPUs below each other": (
        node_file(
            {GPU_AT: f"devices/{OTHER_AT}/{GPU_AT}", OTHER_AT: f"devices/{GPU_AT}/{OTHER_AT}"},
            *OTHER_GPU,
        ),
        f"where GPU {GPU_AT} is",
    ),
    "bridge without a place": (node_file({"0000:17:00.0": PLACE}), "where 0000:16:01.0 is"),
    "links of an old kind": (
        node_file(
            {"0000:17:00.0": PLACE, "0000:16:01.0": PLACE.rpartition("/")[0]},
            {"function": "nvmlDeviceGetNvLinkState", "arguments": [1, 0, "=4"], "memory": [None, None, "01"]},
            {"function": "nvmlDeviceGetNvLinkVersion", "arguments": [1, 0, "=4"], "memory": [None, None, "02"]},
        ),
        "these are older than version 3",
    ),
    "thousands of adapters": (
        whole(
            *({"is": "nvml", "at": 0, "code": 0, **one} for one in GPU),
            {**SYS, "path": "bus/pci/devices", "entries": {GPU_AT: PLACE, "0000:16:01.0": PLACE.rpartition("/")[0]}},
            {**SYS, "path": "class/net", "entries": {f"n{one}": f"devices/{GPU_AT}/n{one}" for one in range(3000)}},
            *({**SYS_FILE, "path": f"devices/{GPU_AT}/n{one}/type", "content": "1"} for one in range(3000)),
        ),
        "it has more than 512 network interfaces",
    ),
    "GPUs of several models": (
        node_file(
            {GPU_AT: PLACE, "0000:16:01.0": PLACE.rpartition("/")[0], OTHER_AT: PLACE.replace(GPU_AT, OTHER_AT)},
            *OTHER_GPU,
            *({"function": "nvmlDeviceGetName", "arguments": [one, "=96"], "memory": [None, f"4{one}" * 5000]}
              for one in (1, 2)),
        ),
        f"its GPUs are of several models: {'A' * 96}, {'B' * 96}",
    ),
    "handle that is no number": (
        whole({"is": "nvml", "at": 0, "code": 0, **GPU[0], "memory": [None, "ffff"]}), "an answer makes no sense"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("content", "problem"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_recording_that_shows_no_parts_takes_no_faults(content: bytes, problem: str, tmp_path: Path) -> None:
    """In one line, which names the recording; without faults it plays."""
    file, faults = tmp_path / "node.cwrec", tmp_path / "faults.yaml"
    file.write_bytes(content)
    faults.touch()
    RecordedNode(file, None, 0.0)
    with pytest.raises(ConfigError) as caught:
        RecordedNode(file, faults, 0.0)
    assert str(caught.value).startswith(f"{file}: takes no faults and no probes: ")
    assert problem in str(caught.value)


def test_numbers_that_no_kernel_writes_do_not_end_the_node(tmp_path: Path, replay: Callable[..., RecordedNode]) -> None:
    """A counter of thousands of digits, and the rate of a port that no number of the machine holds."""
    contents = {"/symbol_error": "9" * 5000, "/aer_dev_correctable": f"BadTLP {'9' * 5000}",
                "/rate": f"{'9' * 400} Gb/sec (4X NDR)"}  # fmt: skip
    held = read_recording(Path(recording("h100x8ndr")))
    lines = [
        {
            **msgspec.to_builtins(one),
            "content": next((contents[word] for word in contents if word in one.path), one.content),
        }
        for one in held.answers
        if isinstance(one, File)
    ] + [msgspec.to_builtins(one) for one in held.answers if not isinstance(one, File)]
    file, faults, clock = tmp_path / "node.cwrec", tmp_path / "faults.yaml", [0.0]
    file.write_bytes(whole(*lines, seconds=held.seconds))
    faults.write_text(
        "- {fault: rdma_errors, device: mlx5_2, counter: symbol_error, rate: 1/s, at: 1s}\n"
        "- {fault: pcie_aer, gpu: 0, severity: correctable, error: BadTLP, rate: 1/s, at: 1s}\n"
        "- {fault: job, rdma_utilization: 0.5, at: 1s}\n"
    )
    node = replay(file, faults, 0.0, lambda: clock[0])
    for clock[0] in (0.0, 5.0):
        node.write_sysfs(tmp_path / "sys")


def test_names_of_a_recording_do_not_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the description of its node."""
    file = tmp_path / "node.cwrec"
    file.write_bytes(node_file(
        {GPU_AT: PLACE, "0000:16:01.0": PLACE.rpartition("/")[0]},
        {"function": "nvmlDeviceGetName", "arguments": [1, "=96"], "memory": [None, "411b5b33316d"]},
        {"function": "nvmlSystemGetDriverVersion", "arguments": ["=80"], "memory": ["1b5b33326d"]},
    ))  # fmt: skip
    assert run_command(Config(), "simulate", str(file)) == 0
    assert "A?[31m, driver ?[32m" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "without", "problem"),
    [
        ("nvlink_down, gpu: 0, link: 1", "", "the GPUs of this node have no NVLink"),
        ("xid, gpu: 2, xid: 79", "", "expected a whole number from 0 to 1"),
        ("ethernet_down, interface: eth0", "", "this node has no 'eth0'; it has ens3f0np0"),
        ("rdma_port_down, device: mlx5_0", "", "this node has no RDMA device"),
        ("pcie_replay, gpu: 0, rate: 1/s", "nvmlDeviceGetFieldValues", "pcie_replay: the recording has none of"),
        ("gpu_throttled, gpu: 0", "nvmlDeviceGetCurrentClocks", "gpu_throttled: the recording has none of"),
        ("ethernet_discards, interface: ens3f0np0, rate: 1/s", "ethtool", "ethernet_discards: the recording has none"),
        ("service_stopped, service: nvidia-persistenced", "comm", "service_stopped: the recording has none of"),
        ("gpu_throttled, gpu: 1", "Reasons of (2,)", "gpu_throttled: the recording has none of"),
        ("gpu_throttled, gpu: 0", "Reasons of (2,)", ""),
        ("xid, gpu: 0, xid: 79", "", ""),
    ],
)
def test_a_fault_that_a_recording_cannot_play_is_refused_in_one_line(
    fault: str, without: str, problem: str, tmp_path: Path
) -> None:
    """For want of the part, or of the answers that it changes, which are taken out here."""
    held = read_recording(Path(recording("a10x2")))

    def is_left(one: Any) -> bool:
        name = type(one).__name__
        if isinstance(one, Call):
            name = f"{one.function} of {one.arguments[:1]}"
        elif isinstance(one, File):
            name = one.path
        known = {"nvmlDeviceGetFieldValues": "Fields", "ethtool": "Statistics"}.get(without, without)
        return not without or known not in name

    lines = [msgspec.to_builtins(one) for one in held.answers if isinstance(one, Folder) or is_left(one)]
    file, faults = tmp_path / "node.cwrec", tmp_path / "faults.yaml"
    file.write_bytes(whole(*lines, seconds=held.seconds))
    faults.write_text(f"- {{fault: {fault}}}\n", encoding="utf-8")
    if not problem:
        assert RecordedNode(file, faults, 0.0).faults is not None
        return
    with pytest.raises(ConfigError) as caught:
        RecordedNode(file, faults, 0.0)
    assert str(caught.value).startswith(str(faults))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_drills_are_fitted_to_a_recording() -> None:
    """Those for its kind of NVLink; an adapter is the one of the same rank, and each other drill has its reason."""
    path = recording("h100x8")
    drills, left_out = fitted(load_drills().values(), path)
    played = {drill.name: drill for drill in drills}
    assert {drill.preset for drill in drills} == {path}
    assert len(drills) + len(left_out) == len(load_drills())
    assert {"nvlink_down", "gpu_lost", "slow_gpu", "sxid_fatal", "job_hang", "ethernet_down"} < played.keys()
    assert played["ethernet_down"].faults == ({"fault": "ethernet_down", "interface": "ens1np0"},)
    assert left_out["nvlink_bit_errors"] == "its alerts are known for NVLinks as of b200x8 alone"
    assert left_out["rdma_port_down"] == "the node has no RDMA device of InfiniBand that stands for mlx5_0"
    assert left_out["p2p_broken"].startswith("p2p_broken: the recording has none of the answers")


def test_the_topology_of_a_recording_is_that_of_its_driver_under_the_faults(tmp_path: Path) -> None:
    """A link is down at the end that the recorded driver named, and the pair is expected to reach that much less."""
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {fault: nvlink_down, gpu: 1, link: 5, at: 0s}\n", encoding="utf-8")
    arguments = ("--simulate", recording("a100x4"), "--simulate.faults", str(faults), "--path.state", str(tmp_path))
    done = command("topology", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    node = json.loads(done.stdout)["nodes"][0]
    links = {f"{one['source']}-{one['target']}": one["nvlinks"] for one in node["paths"] if one["class"] == "NV"}
    assert links == {f"GPU{one}-GPU{other}": 4 - ((one, other) == (1, 2)) for other in range(4) for one in range(other)}
    expected = {one["nvlinks"]: one["expected"]["bytes_per_second"] for one in node["paths"] if one["class"] == "NV"}
    assert expected == {4: 80e9, 3: 60e9}
    assert "GPU1-GPU2: 3 NVLinks" in node["findings"][0]["text"]


@in_one_pass(
    "preset, operation, members",
    [("a100x4", "all_reduce", (0, 1, 2, 3)), ("h100x8", "all_gather", range(8)), ("rtx3090x4", "send_recv", (0, 2)),
     ("a10x2", "host_to_device", (1,))],
)  # fmt: skip
def test_a_probe_takes_on_the_recorded_parts_as_long_as_on_those_of_the_node(
    preset: str, operation: str, members: Sequence[int]
) -> None:
    """Of 64 MiB, without faults."""
    seconds = []
    for name in (preset, recording(preset)):
        probes = SimulatedProbes(SimulatedNode(name, None, 0.0, lambda: 50.0))
        seconds.append(probes.operation_seconds(operation, 64 * 2**20, members, members[0], 40))
    assert seconds[0] == seconds[1] > 0


def test_probes_say_why_they_do_not_run_on_a_recording_without_a_file_of_faults(tmp_path: Path) -> None:
    """Nobody ran a collective when it was recorded."""
    plan = plan_cycle("all_reduce", Probe(measure="all_reduce"), Probes(), backend="simulated", devices=("a", "b"))
    skip = decide(plan, GateFacts(enabled=False, is_recording=True))
    assert skip is not None
    assert skip.detail.startswith("a recording has no collectives; with --simulate.faults FILE, which may be empty,")


def test_diagnose_finds_the_fault_on_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else: what was recorded is healthy."""
    fault = "- {fault: pcie_width, gpu: 1, lanes: 8, at: 60s}"
    with rehearsed(recording("a10x2"), tmp_path, monkeypatch, fault, booted_at=1.8e9, time_now=BEGINS) as daemon:
        daemon.until(2 + BEGINS / 60)
        code, text = daemon.command("diagnose")
    assert code == 1
    assert "critical: PCIe link has lost lanes: PCIe link of GPU1 (0000:99:00.0)" in text
    assert "lanes in use: x8 (limit x16)" in text
    assert text.count("critical: ") == 1
