"""commwatch topology: what it prints in a pipe, its exit codes, and a driver that is missing or hangs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from commwatch.config.settings import Config, NvmlSection, Paths, Simulation, Sources
from commwatch.errors import CommwatchError
from commwatch.node.topology.pair_matrix import PairCell, PairEndpoint, PairMatrix
from commwatch_rehearsal.simulation.presets import PRESETS
from support.command_line import run_command
from support.topologies import simulated_topology
from support.waiting import PATIENCE_SECONDS
from topology.trees import Tree, rtx3090x4, two_sockets


def run(config: Config, *arguments: str) -> int:
    return run_command(config, "topology", *arguments)


def fixture(root: Path) -> Config:
    """A tree of files in place of this machine's, without driver."""
    return Config(
        paths=Paths(sysfs=str(root), procfs=str(root / "proc"), state=str(root / "state")),
        sources=Sources(nvml=NvmlSection(enabled=False)),
    )


def simulated(preset: str, faults: Path | None = None, state: Path | None = None) -> Config:
    """A simulated node, whose state is nowhere unless it is said."""
    paths = Paths(state=str(state or "/nonexistent"))
    return Config(simulation=Simulation(preset=preset, faults=str(faults or "")), paths=paths)


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command prints of a preset is made of one reading, whatever the format."""
    monkeypatch.setattr(
        "commwatch.workers.by_hand.read_topology", lambda given: simulated_topology(given.simulation.preset)
    )


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("preset", ["a10x2", "h100x8ndr", "rtx3090x4"])
def test_a_simulated_node_prints_plain_text_in_a_pipe(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A matrix with a row for each GPU, no escape sequence, and the word that it is simulated."""
    assert run(simulated(preset)) == 0

    out = capsys.readouterr().out
    assert out.startswith(f"Simulated node {preset}")
    assert "\x1b" not in out
    rows = [line.split()[0] for line in out.splitlines() if line.startswith("GPU")]
    assert rows == [f"GPU{index}" for index in range(len(PRESETS[preset].gpus))]
    assert "not read" not in out


def test_the_documentation_shows_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of docs/using/topology.md is a part of the output."""
    document = (Path(__file__).parents[2] / "docs/using/topology.md").read_text(encoding="utf-8")
    _, example = re.findall(r"^```\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)

    assert run(simulated("rtx3090x4", state=tmp_path)) == 0
    out = capsys.readouterr().out
    assert [part for part in example.strip("\n").split("\n\n") if f"\n{part}\n" not in out] == []


def matrix_file(folder: Path, rate: float, *, taken_at: float) -> bytes:
    """A matrix of the simulated 3090 node in which the first two GPUs have another rate than all other pairs."""
    gpus = PRESETS["rtx3090x4"].gpus
    matrix = PairMatrix(
        taken_at=taken_at,
        backend="simulated",
        simulated_node="rtx3090x4",
        latency_bytes=8,
        bandwidth_bytes=2**24,
        endpoints=tuple(
            PairEndpoint(label=str(place), device=gpu.uuid, pci_address=gpu.pci_address)
            for place, gpu in enumerate(gpus)
        ),
        cells=tuple(
            PairCell(source=source, destination=target, bandwidth=rate if {source, target} == {0, 1} else 14e9)
            for source in range(4)
            for target in range(4)
            if source != target
        ),
    )
    (folder / "pairs.json").write_bytes(msgspec.json.encode(matrix))
    return b'{"backend": "simulated", "matrices": [%s]}' % msgspec.json.encode(matrix)


@pytest.mark.usefixtures("read_once")
def test_measured_values_of_a_file_stand_beside_the_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever their age; where they contradict the topology, the output says which GPUs to train on."""
    matrix_file(tmp_path, 5e9, taken_at=1e9)

    assert run(simulated("rtx3090x4", state=tmp_path), "--pairs", str(tmp_path / "pairs.json")) == 0

    out = " ".join(capsys.readouterr().out.split())
    assert "PIX 4 not known 5 GB/s to 14 GB/s -" in out
    assert "GPU0-GPU1 under one PCIe switch (PIX) carry 5 GB/s, less than GPU0-GPU2 across the CPU (NODE)" in out
    assert "rather than 0,1" in out


@pytest.mark.usefixtures("read_once")
def test_the_daemons_values_are_shown_while_they_are_current(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Older than three of the probe's intervals they are not, and the output says so and how to get new ones."""
    config = simulated("rtx3090x4", state=tmp_path)
    state = tmp_path / "simulated-rtx3090x4"
    state.mkdir()
    day = 86400
    (state / "probe-pairs.json").write_bytes(matrix_file(tmp_path, 5e9, taken_at=time.time() - 3 * day + 60))
    assert run(config, "--json") == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert node["measurement"]["backend"] == "simulated"
    assert "measured_nearer_slower" in [one["code"] for one in node["findings"]]

    (state / "probe-pairs.json").write_bytes(matrix_file(tmp_path, 5e9, taken_at=time.time() - 3 * day - 60))
    assert run(config) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "The last values are 3 d old and not shown. To measure: commwatch probe --pairs" in out
    assert "rather than 0,1" not in out


@pytest.mark.usefixtures("read_once")
def test_values_of_another_machine_are_wrong_use(tmp_path: Path) -> None:
    """With the file, and why."""
    matrix_file(tmp_path, 5e9, taken_at=1e9)

    with pytest.raises(
        CommwatchError, match=r"pairs\.json: the values were measured on GPUs that are not here"
    ) as caught:
        run(simulated("h100x8", state=tmp_path), "--pairs", str(tmp_path / "pairs.json"))

    assert caught.value.exit_code == 2


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("preset", ["a10x2", "h100x8ndr", "rtx3090x4"])
def test_a_simulated_node_gives_json_and_a_graph(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The document says simulated and knows every GPU by its address; the graph names every device."""
    assert run(simulated(preset), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["simulated"], found["problems"]) == (True, [])
    addresses = [gpu["pci_bus_id"] for gpu in found["nodes"][0]["gpus"]]
    assert addresses == [gpu.pci_address for gpu in PRESETS[preset].gpus]

    assert run(simulated(preset), "--dot") == 0
    graph = capsys.readouterr().out
    assert all(device.address in graph for device in PRESETS[preset].devices)


@pytest.mark.usefixtures("read_once")
def test_the_pairs_of_the_3090_node_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Four GPUs in pairs behind separate switches: without peer access no pair is expected to be better."""
    assert run(simulated("rtx3090x4")) == 0

    out = " ".join(capsys.readouterr().out.split())
    assert "GPU0 and GPU1 share a PCIe switch (PIX); GPU2 and GPU3 share a PCIe switch (PIX)" in out
    assert "No group is expected to be faster than GPUs of two groups: measure the pairs before you choose" in out
    assert "CUDA_VISIBLE_DEVICES" not in out


def test_a_link_that_is_down_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fault of the simulated driver arrives in the matrix and in the findings."""
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {fault: nvlink_down, gpu: 3, link: 5}\n")

    assert run(simulated("h100x8", faults), "--json") == 0

    node = json.loads(capsys.readouterr().out)["nodes"][0]
    links = {(way["source"], way["target"]): way["nvlinks"] for way in node["paths"] if way["class"] == "NV"}
    assert (links["GPU0", "GPU1"], links["GPU0", "GPU3"], links["GPU3", "GPU4"]) == (18, 17, 17)
    (finding,) = [one for one in node["findings"] if one["code"] == "nvlink_uneven"]
    assert finding["components"] == ["GPU3"]
    assert finding["text"].endswith("Inactive: GPU3 link 5.")


def test_without_a_driver_the_tree_is_printed_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NVLink is unknown, and the output says so; that is no failure."""
    config = fixture(two_sockets(tmp_path).root)

    assert run(config) == 0

    out = capsys.readouterr().out
    assert out.splitlines()[1] == "GPU0  X     PHB   SYS   NODE  0-31          0"
    assert "NVLink is unknown" in out


def test_a_gpu_that_hangs_does_not_hang_the_command(tmp_path: Path) -> None:
    """The other GPUs are read by a second process; the one that hangs is shown with its PCIe paths, and named."""
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {fault: driver_hang, gpu: 1}\n")
    settings = tmp_path / "commwatch.yaml"
    settings.write_text("sources: {nvml: {deadline: 3s, start_deadline: 20s}}\n")
    command = [sys.executable, "-c", _RUN, "--config.file", str(settings), "--simulate", "rtx3090x4"]

    done = subprocess.run(
        [*command, "--simulate.faults", str(faults), "--json"],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
    )  # fmt: skip

    found = json.loads(done.stdout)
    (node,) = found["nodes"]
    assert [gpu["index"] for gpu in node["gpus"]] == [0, 2, 3, None]
    assert node["gpus"][3]["nvlinks"] is None
    assert {way["class"] for way in node["paths"] if way["source"] == "GPU0"} == {"PIX", "NODE"}
    assert any("deadline" in problem for problem in found["problems"])
    assert "gpu_without_index" in [one["code"] for one in node["findings"]]


_RUN = """
import sys
from commwatch.__main__ import build_parser
from commwatch.config.flags import config_from
args = build_parser(["topology"]).parse_args(["topology", *sys.argv[1:]])
sys.exit(args.run(args, config_from(args)))
"""


def test_a_sysfs_that_gives_no_answer_is_an_error(tmp_path: Path) -> None:
    """After the deadline, with a word on what to look at; nothing on standard output."""
    hurry = "from commwatch.workers import by_hand\nby_hand.SYSFS_DEADLINE_SECONDS = 0.0\n"
    command = [sys.executable, "-c", hurry + _RUN, "--path.sysfs", str(rtx3090x4(tmp_path).root)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    assert done.returncode == 1
    assert "CommwatchError" in done.stderr
    assert "no answer" in done.stderr
    assert done.stdout == ""


def test_a_sysfs_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where neither the bus nor the driver can be read, an empty machine is not made up."""
    with pytest.raises(CommwatchError, match=r"bus/pci/devices: No such file") as caught:
        run(fixture(tmp_path / "nothing"))

    assert caught.value.exit_code == 1
    assert capsys.readouterr().out == ""


def test_a_machine_without_gpus_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the matrix of its adapters, with the reason why the driver names none."""
    tree = Tree(tmp_path)
    tree.add("pci0000:00", "0000:00:03.0", kind="ethernet", net=("eth0",))

    assert run(fixture(tree.root)) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "No GPU was found: sources.nvml is disabled in the configuration."
    assert lines[2].split() == ["NIC0", "CPU", "affinity", "NUMA"]


def test_two_outputs_at_once_are_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, nothing on standard output; the graph has no place for measured values."""
    for arguments, said in (
        (("--json", "--dot"), "choose one of"),
        (("--dot", "--pairs", "x.json"), "leave --pairs out"),
    ):
        with pytest.raises(CommwatchError, match=said) as caught:
            run(fixture(tmp_path), *arguments)
        assert caught.value.exit_code == 2
    assert capsys.readouterr().out == ""


def test_an_unknown_preset_is_wrong_use() -> None:
    """Exit code 2, with the presets that there are."""
    with pytest.raises(CommwatchError, match="rtx3090x4") as caught:
        run(simulated("nosuch"))

    assert caught.value.exit_code == 2


def test_a_terminal_gets_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Classes are coloured, and no line is folded."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")

    assert run(fixture(rtx3090x4(tmp_path).root)) == 0

    lines = capsys.readouterr().out.splitlines()
    assert "\x1b[36mPIX" in lines[1]
