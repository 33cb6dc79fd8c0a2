"""commwatch estimate: the published case, rates from the daemon's last results, output, and bad input."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.cluster.node_record import NodeHistory
from commwatch.cluster.node_report import NetworkRates, NodeReport
from commwatch.config.settings import Config, Paths, Probe, Probes, Simulation
from commwatch.errors import CommwatchError
from commwatch.node.topology.pair_matrix import PairCell, PairEndpoint, PairMatrix
from commwatch.probes.plan import Measure
from commwatch.probes.rank_plan import Backend
from commwatch.probes.results.history import Conditions, LastResult, ProbeHistory, ScalingRate
from support.command_line import run_command
from support.passes import in_one_pass

Output = pytest.CaptureFixture[str]
CASE = (
    "--parameters 1.5B --strategy zero3 --nodes 2 --gpus-per-node 2 --micro-batches 2 --step-time 1.03s "
    "--network 8.74Gbit/s 9.28Gbit/s"
)
"""Two nodes with two A10 each: the published analysis of a slow run, with what was measured there."""
HOUR = 3600


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A machine with an empty state directory."""
    return Config(paths=Paths(state=str(tmp_path)))


def run(config: Config, arguments: str) -> int:
    return run_command(config, "estimate", *shlex.split(arguments))


def document(config: Config, arguments: str, capsys: Output) -> dict[str, Any]:
    assert run(config, f"{arguments} --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def error_of(config: Config, arguments: str) -> str:
    with pytest.raises(CommwatchError) as caught:
        run(config, arguments)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refusal_of(config: Config, arguments: str, capsys: Output) -> str:
    """What the command line says of a value that it cannot read."""
    with pytest.raises(SystemExit) as caught:
        run(config, arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1].partition(" error: argument ")[2]


def text(config: Config, arguments: str, capsys: Output) -> str:
    """What is printed, in one line."""
    assert run(config, arguments) == 0
    return " ".join(capsys.readouterr().out.split())


# --- the published case ---


@pytest.mark.parametrize("more", ["", "--intra-node 10GB/s"])
def test_the_published_case(config: Config, more: str, capsys: Output) -> None:
    """The range holds what was observed, the network is the bottleneck, and one node with DDP is chosen."""
    found = document(config, f"{CASE} {more}", capsys)

    waiting, step = found["waiting_per_micro_batch_seconds"], found["step_seconds"]
    assert waiting["low"] <= 3.1
    assert waiting["high"] >= 4.1
    assert step["low"] <= 8.68 <= step["high"]
    assert found["communication_per_micro_batch_seconds"]["low"] == pytest.approx(3 * 1.5 / 1.16, rel=2e-3)
    assert found["bottleneck"] == {"part": "network", "certain": True}
    assert found["choice"] == {"strategy": "ddp", "nodes": 1, "gpus_per_node": 2}
    (asked,) = [one for one in found["scaling"] if one["nodes"] == 2]
    assert asked["speedup_over_one_node_ratio"]["high"] < 1


def test_the_published_case_in_words(config: Config, capsys: Output) -> None:
    """With every unit and byte count, so that nobody takes a billion for 10⁸."""
    shown = text(config, CASE, capsys)

    assert "The network is the bottleneck: busy for at least 7.77 s of a step" in shown
    assert "times the work of one node with ZeRO-3: slower than one node." in shown
    assert "Choose one node × 2 GPUs, DDP" in shown
    assert "1,500,000,000 × 2 bytes = 3,000,000,000 bytes = 3 GB" in shown
    assert "1B is 10^9 parameters: 1.5B is 1,500,000,000." in shown
    assert "8.74 Gbit/s to 9.28 Gbit/s = 1.0925 GB/s to 1.16 GB/s" in shown
    assert "GPU unknown" in shown
    assert "fits unknown" in shown


def test_the_documentation_shows_what_is_printed(config: Config, capsys: Output) -> None:
    """The file beside docs/using/estimate.md is the whole output of its example; the page has the beginning."""
    docs = Path(__file__).parents[2] / "docs/using"
    written = (docs / "estimate.md").read_text(encoding="utf-8")
    whole = (docs / "estimate/deepspeed-5770.txt").read_text(encoding="utf-8")
    command, beginning = re.findall(r"^```(?:sh)?\n(.*?)^```$", written, re.DOTALL | re.MULTILINE)[:2]

    assert run(config, command.replace("\\\n", " ").strip().removeprefix("commwatch estimate ")) == 0
    assert capsys.readouterr().out == whole
    assert whole.startswith(beginning)


def test_memory_that_is_known_is_judged(config: Config, capsys: Output) -> None:
    """DDP with fp32 Adam takes all of an A10; with the moments in bf16 it fits."""
    full = document(config, f"{CASE} --gpu A10", capsys)
    pure = document(config, f"{CASE} --gpu A10 --optimizer adam-pure", capsys)
    shown = text(config, f"{CASE} --gpu-memory 5GB", capsys)

    assert full["choice"] == {"strategy": "zero1", "nodes": 1, "gpus_per_node": 2}
    assert any("DDP on the same GPUs does not fit: 24 GB of model state" in one for one in full["verdict"])
    assert pure["choice"]["strategy"] == "ddp"
    assert full["memory"]["left_bytes"] == 23028 * 2**20 - 6_000_000_000 - full["memory"]["reserved_bytes"]
    assert "fits no; 2.2 GB too much even without activations" in shown
    assert "does not fit on these GPUs with any strategy" in shown


# --- where the rates come from ---


def save(folder: Path, name: Measure, *, ranks: int, rate: float, age: float = 60, backend: Backend = "nccl",
         scaling: dict[int, float] | None = None, hidden: float | None = None) -> None:  # fmt: skip
    points = tuple(ScalingRate(count, one, 0.1) for count, one in (scaling or {}).items())
    at = time.time() - age
    last = LastResult(finished_at=at, setup_seconds=1.0, bus_bandwidth=rate, scaling=points, hidden_ratio=hidden)
    conditions = Conditions(name, 8, 2**26, ranks, "2.30.7")
    history = ProbeHistory(backend, conditions=conditions, last=last, last_completion_at=at)
    (folder / f"probe-{name}.json").write_bytes(msgspec.json.encode(history))


def test_rates_of_the_last_results(config: Config, tmp_path: Path, capsys: Output) -> None:
    """By number of GPUs, slowest to fastest of the collectives; the number measured is the default, given rates win."""
    save(tmp_path, "all_reduce", ranks=4, rate=22e9)
    save(tmp_path, "all_gather", ranks=4, rate=20e9)
    save(tmp_path, "scaling", ranks=4, rate=21e9, scaling={2: 50e9, 4: 21e9})

    found = document(config, "--parameters 1.5B --step-time 1s", capsys)

    assert found["layout"]["gpus_per_node"] == 4
    assert found["in_node_bytes_per_second"] == {"2": {"low": 50e9, "high": 50e9}, "4": {"low": 20e9, "high": 22e9}}
    assert found["communication_seconds"]["low"] == pytest.approx(1.5 * 3 / 22, rel=2e-3)
    assert found["communication_seconds"]["high"] == pytest.approx(1.5 * 3 / 20, rel=2e-3)
    assert any(
        one.startswith("within a node: all_gather over 4 GPUs: 20 GB/s, measured 60 s ago") for one in found["rates"]
    )
    given = document(config, "--parameters 1.5B --step-time 1s --intra-node 12GB/s 10GB/s", capsys)
    assert given["in_node_bytes_per_second"] == {"4": {"low": 10e9, "high": 12e9}}


@pytest.mark.parametrize(
    ("more", "share", "basis"),
    [("", 0.3, "training, measured 60 s ago"), ("--overlap 90%", 0.9, "given"), ("--overlap 0%", 0.0, "given")],
)
def test_what_these_gpus_hide_counts(
    config: Config, tmp_path: Path, more: str, share: float, basis: str, capsys: Output
) -> None:
    """Of the last training-like probe, else as given: the range goes from a tenth more to a tenth less than that."""
    probing = msgspec.structs.replace(config, probes=Probes(definitions={"training": Probe(measure="training")}))
    common = "--parameters 1.5B --gpus 2 --strategy fsdp --step-time 1s --intra-node 10GB/s"
    save(tmp_path, "training", ranks=2, rate=10e9, hidden=0.3)
    found = document(probing, f"{common} {more}", capsys)

    sent, ends = 3 * 1.5 / 10, (min(1.0, share + 0.1), max(0.0, share - 0.1))
    expected = [1 + (1 - hidden) * sent for hidden in ends]
    assert [found["step_seconds"]["low"], found["step_seconds"]["high"]] == pytest.approx(expected, rel=4e-2)
    assert f"hidden: {100 * share:.0f} % of the shorter of computing and sending, {basis}" in found["rates"]


def test_results_that_do_not_count(config: Config, tmp_path: Path, capsys: Output) -> None:
    """Too old, of gloo, damaged, no rate: not used, and why; nothing is changed in the state directory."""
    save(tmp_path, "all_reduce", ranks=2, rate=22e9, age=HOUR)
    save(tmp_path, "all_gather", ranks=2, rate=1e9, backend="gloo")
    (tmp_path / "probe-scaling.json").write_bytes(b"{")
    save(tmp_path, "reduce_scatter", ranks=2, rate=0.0)
    before = sorted(one.name for one in tmp_path.iterdir())

    found = document(config, "--parameters 1.5B --step-time 1s --gpus 2", capsys)

    assert found["in_node_bytes_per_second"] == {"2": {"low": 6e9, "high": None}}
    assert [one.partition(":")[0] for one in found["not_used"]] == [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "scaling",
    ]
    assert "the last result is 1 h old" in found["not_used"][0]
    assert sorted(one.name for one in tmp_path.iterdir()) == before


def test_without_a_result_gpus_of_an_nvlink_board_are_not_taken_for_cards(config: Config, capsys: Output) -> None:
    """Ten GB/s for each NVLink; pairs on a board of four have a third of them. A card may be without bridges."""
    for gpu, gpus, low in (("H100 80GB HBM3", 8, 180e9), ("A100-SXM4-80GB", 8, 120e9), ("H100 80GB HBM3", 4, 60e9),
                           ("H100 PCIe", 8, 6e9), ("RTX 3090", 8, 3.8e9)):  # fmt: skip
        found = document(config, f"--parameters 7B --tokens 4096 --gpus {gpus} --gpu '{gpu}'", capsys)
        assert found["in_node_bytes_per_second"] == {str(gpus): {"low": low, "high": None}}


def test_the_gpus_of_this_node_are_known_by_name(config: Config, tmp_path: Path, capsys: Output) -> None:
    """From the last pair matrix: memory, and the peak that tokens are reckoned with; a simulated node is named."""
    simulated = msgspec.structs.replace(config, simulation=Simulation(preset="a10x2"))
    state = tmp_path / "simulated-a10x2"
    state.mkdir()
    ends = tuple(PairEndpoint(label=str(index), name="NVIDIA A10") for index in range(2))
    matrix = PairMatrix(
        taken_at=1e9, backend="simulated", latency_bytes=8, bandwidth_bytes=2**24, endpoints=ends, cells=()
    )
    (state / "probe-pairs.json").write_bytes(
        b'{"backend": "simulated", "matrices": [%s]}' % msgspec.json.encode(matrix)
    )

    found = document(simulated, "--parameters 1.5B --tokens 4096 --gpus 2", capsys)

    assert found["simulated_node"] == "a10x2"
    assert found["memory"]["gpu_bytes"] == 23028 * 2**20
    assert found["compute_seconds"]["low"] == pytest.approx(6 * 1.5e9 * 4096 / (0.75 * 125e12))
    assert "the share is what published runs reach" in found["assumptions"][0]


RAILS = {f"mlx5_{number}:1": (50e9, f"0000:{0x20 + number:02x}:00.0") for number in range(8)}
STORAGE = {f"mlx5_{20 + port}:1": (50e9, f"0000:{card}:00.{port % 2}") for port, card in enumerate(("e0", "e0"))}


@in_one_pass(
    "ports, gpus, rate",
    [
        (RAILS, 8, 400e9),
        ({**RAILS, **STORAGE}, 8, 400e9),
        ({**RAILS, "mlx5_20:1": (25e9, "0000:e0:00.0")}, 8, 400e9),
        ({**RAILS, **STORAGE}, 4, 400e9),
        # Nothing tells them apart: a rail has no cable, no address was kept, there is one GPU, or one adapter for two.
        (dict([*RAILS.items()][1:]) | STORAGE, 8, 450e9),
        ({name: (speed, "") for name, (speed, _) in {**RAILS, **STORAGE}.items()}, 8, 500e9),
        ({**RAILS, **STORAGE}, 1, 500e9),
        ({"mlx5_0:1": (50e9, "0000:17:00.0"), **{name: (3e9, card) for name, (_, card) in STORAGE.items()}}, 2, 56e9),
    ],
)
def test_ports_of_storage_are_no_rails(
    config: Config, tmp_path: Path, capsys: Output, ports: dict[str, tuple[float, str]], gpus: int, rate: float
) -> None:
    """Rails are one or several for each GPU, of one speed and on cards of one kind."""
    kept = {
        "gpus": {f"GPU-{one}": {"index": one, "pci_bus_id": "", "name": "NVIDIA L40S"} for one in range(gpus)},
        "rdma_ports": {name: {"expected": speed} for name, (speed, _) in ports.items()},
        "rdma_addresses": {name: address for name, (_, address) in ports.items() if address},
    }
    (tmp_path / "inventory.json").write_text(json.dumps(kept), encoding="utf-8")

    found = document(config, "--parameters 7B --nodes 2 --tokens 4096", capsys)

    assert found["network_bytes_per_second"] == {"low": rate / 2, "high": rate}


def test_what_the_daemon_remembers_of_this_node(config: Config, tmp_path: Path, capsys: Output) -> None:
    """Number, model, memory and PCIe of the GPUs, and the line rate of all RDMA ports, at the slow end half of it.

    The memory that the driver reports counts before the table, and the model that is asked for before the driver.
    """
    seen = {"expected": 25e9}
    gpus: dict[str, dict[str, Any]] = {
        f"GPU-{one}": {"index": one, "pci_bus_id": "", "name": "NVIDIA L40S"} for one in range(4)
    }
    kept = {"gpus": gpus, "ports": {"eth0": {"expected": 1.25e9}}, "rdma_ports": {"mlx5_0:1": seen, "mlx5_1:1": seen}}
    (tmp_path / "inventory.json").write_text(json.dumps(kept), encoding="utf-8")

    found = document(config, "--parameters 7B --nodes 2 --tokens 4096", capsys)

    assert found["layout"]["gpus_per_node"] == 4
    assert found["memory"]["gpu_bytes"] == 46068 * 2**20
    assert found["network_bytes_per_second"] == {"low": 25e9, "high": 50e9}
    assert found["in_node_bytes_per_second"]["4"]["low"] == 6e9

    for one, lanes in zip(gpus.values(), (16, 16, 4, 16), strict=True):
        one |= {"memory_bytes": 44 * 10**9 + lanes, "pcie_lanes": {"seen": lanes}, "pcie_generation": {"expected": 4}}
    (tmp_path / "inventory.json").write_text(json.dumps(kept), encoding="utf-8")
    found = document(config, "--parameters 7B --nodes 2 --tokens 4096", capsys)

    assert (found["memory"]["gpu_bytes"], found["memory"]["basis"]) == (44 * 10**9 + 4, "44 GB, read from the driver")
    assert found["in_node_bytes_per_second"]["4"]["low"] == 3e9
    assert any("PCIe gen 4 x4 through the host" in one for one in found["rates"])
    asked = document(config, "--parameters 7B --tokens 4096 --gpu A30", capsys)
    assert asked["memory"]["gpu_bytes"] == 24576 * 2**20
    del gpus["GPU-3"]["memory_bytes"]
    (tmp_path / "inventory.json").write_text(json.dumps(kept), encoding="utf-8")
    assert document(config, "--parameters 7B --tokens 4096", capsys)["memory"]["gpu_bytes"] == 46068 * 2**20


def test_the_gpus_whose_slowest_pair_is_the_fastest(config: Config, tmp_path: Path, capsys: Output) -> None:
    """From the last pair matrix, in the slower direction; not where all GPUs are taken."""
    slow = ({0, 1}, {2, 3})
    cells = tuple(
        PairCell(source=one, destination=other, path="PIX", bandwidth=5e9 if {one, other} in slow else 12e9 + one)
        for one, other in permutations(range(4), 2)
    )
    ends = tuple(PairEndpoint(label=str(index), name="NVIDIA A10") for index in range(4))
    matrix = PairMatrix(
        taken_at=1e9, backend="nccl", latency_bytes=8, bandwidth_bytes=2**24, endpoints=ends, cells=cells
    )
    (tmp_path / "probe-pairs.json").write_bytes(b'{"backend": "nccl", "matrices": [%s]}' % msgspec.json.encode(matrix))

    assert "Of this node take GPU1, GPU2: their slowest pair carries 12 GB/s" in text(
        config, "--parameters 1.5B --step-time 1s --gpus 2", capsys
    )
    assert "Of this node take" not in text(config, "--parameters 1.5B --step-time 1s --gpus 4", capsys)


# --- an observed step ---


def test_an_observed_step_sets_all_figures(config: Config, capsys: Output) -> None:
    """The asked layout takes what was observed, others lie where it lies, in a range of a fifth of before."""
    free, set_by = (document(config, f"{CASE} {more}", capsys) for more in ("", "--observed-step 8.68s"))

    assert set_by["observed_step_seconds"] == 8.68
    assert set_by["step_seconds"]["low"] <= 8.68 <= set_by["step_seconds"]["high"]
    for before, after in zip(free["scaling"], set_by["scaling"], strict=True):
        wide, narrow = (one["step_seconds"]["high"] - one["step_seconds"]["low"] for one in (before, after))
        assert narrow <= 0.25 * wide + 1e-9
    assert any("lie within the estimate" in one for one in set_by["verdict"])


@pytest.mark.parametrize(("step", "words"), [("2s", "times its fast end"), ("60s", "times its slow end")])
def test_an_observation_outside_the_estimate_makes_it_unsure(
    config: Config, step: str, words: str, capsys: Output
) -> None:
    """It is said, the figures are scaled by it, and nothing is certain any more."""
    found = document(config, f"{CASE} --observed-step {step}", capsys)

    assert any(words in one for one in found["verdict"])
    assert found["step_seconds"]["low"] <= float(step[:-1]) * (1 + 1e-9)
    assert found["step_seconds"]["high"] >= float(step[:-1]) * (1 - 1e-9)
    assert found["bottleneck"]["certain"] is False


@pytest.mark.parametrize(
    ("more", "is_asked"),
    [("--gpus 2", True), ("--gpus 2 --step-time-gpus 1", False), ("--gpus 2 --step-time-gpus 2", False),
     ("--gpus 1", False), ("--gpus 2 --tokens 4096 --gpu A10", False)],
)  # fmt: skip
def test_a_step_time_is_asked_for_what_it_is(config: Config, more: str, is_asked: bool, capsys: Output) -> None:
    """Where it matters and was not said."""
    step_time = "" if "--tokens" in more else "--step-time 1.03s"
    verdict = document(config, f"--parameters 1.5B {step_time} {more}", capsys)["verdict"]

    assert any(one.startswith("Is 1.03 s the time of one GPU that works alone?") for one in verdict) is is_asked


def test_of_a_step_time_on_several_gpus_their_waiting_is_no_computing(config: Config, capsys: Output) -> None:
    """At most 1.03 s, at least what is left of it after what the GPUs of the node send; it holds what was measured."""
    case = "--parameters 1.5B --strategy zero3 --gpus 2 --step-time 1.03s --intra-node 20GB/s --step-time-gpus 2"
    found = document(config, case, capsys)

    assert found["compute_seconds"]["high"] == 1.03
    assert found["compute_seconds"]["low"] == pytest.approx(1.03 - 3 * 1.5 / 20, rel=1e-2)
    assert found["step_seconds"]["low"] <= 1.03 <= found["step_seconds"]["high"]


# --- what is trained ---


@pytest.mark.parametrize(
    ("size", "more", "in_range"),
    [("399M", "", False), ("400M", "", True), ("399M", "--step-time 100ms --step-time-gpus 1", True),
     ("399M", "--mfu 30%", True)],
)  # fmt: skip
def test_small_models_are_out_of_range(config: Config, size: str, more: str, in_range: bool, capsys: Output) -> None:
    """Where their computing would come from what published runs of larger ones reach."""
    found = document(config, f"--parameters {size} --tokens 65536 --gpus 8 --gpu A100 {more}", capsys)

    assert found["in_range"] is in_range
    assert any(one.startswith("Out of range: models below 400M parameters") for one in found["verdict"]) != in_range
    assert in_range or not found["bottleneck"]["certain"]


def test_adapters_send_and_hold_little(config: Config, capsys: Output) -> None:
    """Gradients and optimizer state of the trained parameters alone, and less computing; all are gathered."""
    full = "--parameters 7B --strategy zero3 --gpus 4 --gpu A10 --tokens 4096 --intra-node 10GB/s"
    all_of_it, lora = (document(config, f"{full} {more}", capsys) for more in ("--recompute", "--trainable 20M"))

    assert (lora["trainable"], lora["gradient_bytes"], lora["optimizer_bytes"]) == (20_000_000, 40_000_000, 240_000_000)
    assert [one["size_bytes"] for one in lora["transfers"]] == [14_000_000_000, 14_000_000_000, 40_000_000]
    for end, operations in (("low", 7), ("high", 8)):  # the recomputed pass is half at the fast end
        ratio = all_of_it["compute_seconds"][end] / lora["compute_seconds"][end]
        assert ratio == pytest.approx(operations / 4 * 0.7, rel=2e-2)
    assert "--trainable: expected at most the parameters" in error_of(config, f"{full} --trainable 8B")


CARDS = {
    "4090": 24564, "5090": 32607, "NVIDIA GeForce RTX 5090": 32607, "L4": 23034, "L20": 46068, "L40S": 46068,
    "A30": 24576, "A10G": 23028, "A6000": 49140, "T4": 15360, "H20": 97871, "NVIDIA H20-3e": 143771, "H800": 81559,
    "H800 PCIe": 81559, "H200 NVL": 143771, "GB200": 189471, "GB300": 284208, "B300": 275040,
    "NVIDIA B300 SXM6 AC": 275040, "RTX PRO 6000": 97887,
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": 97887, "Tesla V100-SXM2-16GB": 16384, "V100": None, "A800": None,
    "A100": None,
}  # fmt: skip
"""MiB by what people call them and by the driver's name; None where there are several of the name."""


@pytest.mark.parametrize("name", CARDS)
def test_common_cards_are_known(config: Config, name: str, capsys: Output) -> None:
    """With their memory; where there are several, it is asked which, and by which option."""
    found = document(config, f"--parameters 1B --tokens 4096 --gpus 1 --gpu '{name}'", capsys)

    assert found["compute_seconds"]["low"] > 0
    mebibytes, memory = CARDS[name], found["memory"]
    assert memory["gpu_bytes"] == (None if mebibytes is None else mebibytes * 2**20)
    assert ("give it as --gpu-memory" in memory["basis"]) == (mebibytes is None)


def test_a_state_that_fits_no_gpu_is_never_chosen(config: Config, capsys: Output) -> None:
    """Also where the memory is not known: no GPU has 3.76 TB, and GPUs that would hold it are counted."""
    asked = "--parameters 235B --gpus 8 --tokens 4096 --intra-node 400GB/s"
    unknown, known = (text(config, f"{asked} {more}", capsys) for more in ("--gpu-flops 989TFLOP/s", "--gpu H800"))

    for shown, count in ((unknown, 13), (known, 45)):
        assert "Choose" not in shown
        assert f"at least {count} GPUs of" in shown
    assert "not known; give it as --gpu-memory." in text(
        config, f"{asked.replace('235B', '7B')} --gpu-flops 989TFLOP/s", capsys
    )


# --- output ---


def test_plain_text_in_a_pipe(config: Config, capsys: Output) -> None:
    """No escape sequence, nothing wider than 80 columns, every assumption."""
    assert run(config, CASE) == 0

    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    assert "Assumptions\n  - One GPU alone computes 1.03 s on a micro-batch" in out


def test_a_terminal_gets_colour(config: Config, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    """The bottleneck and the choice stand out."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")

    assert run(config, CASE) == 0

    out = capsys.readouterr().out
    assert "\x1b[33mThe network is the bottleneck" in out
    assert "\x1b[32mChoose one node" in out


def test_help_has_an_example_that_works(config: Config, capsys: Output) -> None:
    """It stands in a paragraph of its own."""
    with pytest.raises(SystemExit):
        run(config, "--help")
    [example] = [part for part in capsys.readouterr().out.split("\n\n") if part.startswith("example: ")]
    words = " ".join(example.split()).partition("commwatch estimate ")[2]

    assert run(config, words) == 0


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp", "tp"])
def test_every_strategy_is_printed(config: Config, strategy: str, capsys: Output) -> None:
    """Over nodes, as text and as JSON."""
    arguments = (
        f"--parameters 7B --strategy {strategy} --nodes 4 --gpus 8 --tokens 4096 --hidden 4096 --layers 32 --gpu-flops "
        "989TFLOP/s --mfu 50% --network 50GB/s --intra-node 300GB/s"
    )

    found = document(config, arguments, capsys)
    shown = text(config, arguments, capsys)

    assert found["layout"] == {"strategy": strategy, "nodes": 4, "gpus_per_node": 8}
    assert [one["nodes"] for one in found["scaling"]] == [1, 1, 1, 1, 2, 4, 8]
    assert "50 % of 989 TFLOP/s, given); the share is given" in shown


def test_one_gpu_communicates_with_nobody(config: Config, capsys: Output) -> None:
    """No rate is needed, and nothing is chosen."""
    shown = text(config, "--parameters 350M --step-time 100ms --gpus 1", capsys)

    assert "One GPU communicates with nobody." in shown
    assert "Choose" not in shown


# --- bad input ---

_GOOD = "--parameters 1.5B --step-time 1s --gpus 2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "--parameters: is missing; give their number with its unit, such as --parameters 1.5B"),
        ("--parameters 1.5B --step-time 1s", "--gpus-per-node: is missing, and nothing was measured here; give it"),
        ("--parameters 1.5B --gpus 2", "--step-time: is missing; give what one GPU alone computes on a micro-batch"),
        ("--parameters 1B --gpus 2 --tokens 8K --step-time-gpus 2", "--step-time-gpus: is the number of GPUs that had"),
        (f"{_GOOD} --nodes 2", "--network: is missing: what lies between nodes is not measured here; give"),
        (f"{_GOOD} --strategy tp", "--strategy tp: needs --tokens, --hidden and --layers"),
        (f"{_GOOD} --gpu A11", "--gpu: 'A11' is not known; give --gpu-memory and --gpu-flops instead, or one"),
        (f"{_GOOD} --gpu H100", "--gpu: 'H100' may be H100 80GB HBM3 or H100 PCIe or H100 NVL, which differ"),
        ("--parameters 1.5B --gpus 2 --tokens 8K", "--gpu-flops: is missing: the peak is not known without the GPU's"),
        ("--parameters 1.5B --gpus 2 --tokens 8K --gpu A10 --precision fp32", "--gpu-flops: is missing: the peak of"),
        (f"{_GOOD} --network 1GB/s measured", "--network: expected rates or measured, got both"),
    ],
)  # fmt: skip
def test_what_cannot_be_estimated_is_one_clear_line(config: Config, arguments: str, message: str) -> None:
    """With the option, and what would be right; exit code 2."""
    assert error_of(config, arguments).startswith(f"estimate: {message}")


def test_all_that_is_missing_is_said_at_once(config: Config, tmp_path: Path) -> None:
    """In one line; what two GPUs reach says nothing of eight."""
    message = error_of(config, "--nodes 2")
    assert all(
        f"{option}: is missing" in message for option in ("--parameters", "--gpus-per-node", "--step-time", "--network")
    )

    save(tmp_path, "all_reduce", ranks=2, rate=22e9)
    assert error_of(config, _GOOD.replace("2", "8")) == (
        "estimate: --intra-node: is missing: measured here over at most 2 GPUs, not 8; give it, such as 20GB/s"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--parameters 7", "--parameters: 7 has no unit: write 7B for 7 × 10^9"),
        ("--parameters 1.5G", "--parameters: expected a whole number of parameters such as"),
        ("--gpus two", "--gpus-per-node/--gpus: expected a whole number from 1 to 1024, got 'two'"),
        ("--nodes 0", "--nodes: expected a whole number from 1 to 10000, got '0'"),
        ("--network 9Gbps", "--network: expected a rate with a unit (B/s, kB/s, MB/s, GB/s, Mbit/s, Gbit/s)"),
        ("--network 0Gbit/s", "--network: expected at least 1kB/s, got '0Gbit/s'"),
        ("--intra-node 20", "--intra-node: expected a rate with a unit"),
        ("--strategy zero4", "--strategy: invalid choice: 'zero4' (choose from 'ddp', 'zero1', 'zero2', 'zero3', "),
        ("--precision fp8", "--precision: invalid choice: 'fp8' (choose from 'bf16', 'fp16', 'fp32')"),
        ("--optimizer lion", "--optimizer: invalid choice: 'lion' (choose from 'adam', 'adam-pure', 'sgd')"),
        ("--gpu-memory 24", "--gpu-memory: expected a size with a unit"),
        (f"--network {'9' * 400}GB/s", "--network: the number is too large"),
        ("--gpu-memory 0GB", "--gpu-memory: expected at least 1B, got '0GB'"),
        ("--micro-batches -1", "--micro-batches: expected a whole number from 1 to 1000000, got '-1'"),
        ("--step-time 0s", "--step-time: expected at least 1us, got '0s'"),
        ("--step-time 1", "--step-time: expected a duration with a unit"),
        ("--tokens many", "--tokens: expected a whole number of tokens such as 4096 or 8K"),
        ("--gpu-flops 125T", "--gpu-flops: expected a rate with a unit (TFLOP/s, PFLOP/s) such as 125TFLOP/s"),
        ("--gpu-flops 0TFLOP/s", "--gpu-flops: expected at least 1TFLOP/s"),
        ("--overlap 140%", "--overlap: expected a share above 0 % and at most 100 %, such as 40%, got '140%'"),
        ("--step-time-gpus 0", "--step-time-gpus: expected a whole number from 1 to 1024, got '0'"),
        ("--mfu 140%", "--mfu: expected a share above 0 % and at most 100 %, such as 40%, got '140%'"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(config: Config, arguments: str, message: str, capsys: Output) -> None:
    """The same, below the usage of the command."""
    assert refusal_of(config, arguments, capsys).startswith(message)


# --- the network of the last run between nodes ---


def between_nodes(config: Config, age: float, network: NetworkRates | None) -> None:
    """What the daemon keeps of a run that ended so many seconds ago."""
    last = NodeReport(
        run="0" * 32, finished_at=time.time() - age, outcome="completed", backend="tcp", nodes=4, network=network
    )
    Path(config.paths.state, "cluster.json").write_bytes(msgspec.json.encode(NodeHistory(last=last)))


MEASURED_CASE = CASE.replace("8.74Gbit/s 9.28Gbit/s", "measured")


def test_the_network_may_be_that_of_the_last_run_between_nodes(config: Config, capsys: Output) -> None:
    """The same rates give the same answer as given by hand; the output says who measured them, and when."""
    by_hand = document(config, CASE.replace("8.74Gbit/s 9.28Gbit/s", "1.09GB/s 1.16GB/s"), capsys)
    between_nodes(config, HOUR, NetworkRates(usual=1.13e9, low=1.0925e9, high=1.16e9))

    measured = document(config, MEASURED_CASE, capsys)
    assert measured["step_seconds"] == by_hand["step_seconds"]
    told = text(config, MEASURED_CASE, capsys)
    assert "= 1.09 GB/s to 1.16 GB/s, measured " in told
    assert "ago between 4 nodes over tcp" in told


@pytest.mark.parametrize(
    ("age", "network", "words"),
    [
        (None, None, "no run between nodes is known in "),
        (HOUR, None, "no run between nodes is known in "),
        (4 * 24 * HOUR, NetworkRates(usual=1e9, low=1e9, high=1e9), "the last run between nodes is "),
    ],
)
def test_without_a_current_run_nothing_is_measured(
    config: Config, age: float | None, network: NetworkRates | None, words: str
) -> None:
    """One line says so, and where such a result comes from."""
    if age is not None:
        between_nodes(config, age, network)
    told = error_of(config, MEASURED_CASE)
    assert told.startswith("estimate: --network measured: ")
    assert words in told
    assert "commwatch cluster probe hands its result" in told
    Path(config.paths.state, "cluster.json").write_text("{", encoding="utf-8")
    assert "cluster.json cannot be read" in error_of(config, MEASURED_CASE)
