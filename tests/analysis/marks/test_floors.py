"""Floors of machine types and of a site: what fails by them, the site's file, and what it is learned from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from commwatch.config.settings import Config
from commwatch.diagnosis.check import Check
from commwatch.diagnosis.marks.floors import SiteFloors, read_floors
from commwatch.diagnosis.marks.profiles import PROFILES, Asked
from commwatch.diagnosis.preflight import preflight
from commwatch.diagnosis.profile import checks_of
from commwatch.diagnosis.walk import diagnose
from commwatch.errors import CommwatchError, ConfigError, UsageError
from commwatch.findings.api_documents import ProbesDocument
from commwatch.state.client import DaemonAbsent
from commwatch.views.top.daemon import Endpoint
from commwatch.views.top.frame import Documents
from diagnosis.exposed import known_of
from support.command_line import run_command
from support.facts import NOW
from support.machines import NodeNumbers, gpus, host_copies, merged, nvlinks, pairs, probe
from support.passes import in_one_pass

H100, H200, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-40GB"
GIB = 2**30
MEASURE = "all_reduce bus bandwidth, 64 MiB, 8 GPUs"
SITE = f"""\
# Ours.
floors:
  - gpu: {H100}
    gpus: 8
    measure: {MEASURE}
    at_least: 350GB/s
    origin: last winter
  - gpu: {H100}
    gpus: 8
    measure: copy host to device, 16 MiB
    at_least: 40GB/s
"""


def checks(*parts: NodeNumbers, asked: Asked = Asked()) -> dict[str, Check]:  # noqa: B008 - it is frozen
    """The checks of a node by how they begin."""
    return {one.what: one for one in checks_of(known_of(merged(*parts)).facts, asked)}


def machine(gpu: str = H100, count: int = 8, version: str = "4.0") -> NodeNumbers:
    """GPUs that NVLinks join."""
    return merged(gpus(count, gpu), nvlinks(count, version))


# --- machine types ---


@in_one_pass(
    "node, rate, expected, size, verdict",
    [
        (machine(), 460, 478.9, 8 * GIB, "passed"),
        (machine(), 459.9, 478.9, 8 * GIB, "failed"),
        (machine(), 459.9, 478.9, 2 * GIB, "published mark"),
        (machine(), 360, 361.8, GIB // 16, "published mark"),
        (machine(), 330, 400.6, GIB // 4, "failed"),
        (machine(H200), 431, 480, 8 * GIB, "passed"),
        (machine(H200), 430, 480, 8 * GIB, "failed"),
        (machine(A100, version="3.0"), 228, 231.6, 8 * GIB, "passed"),
        (machine(A100, version="3.0"), 227, 231.6, 8 * GIB, "failed"),
        (machine(H100, 4), 100, 315, 8 * GIB, None),
        (machine("NVIDIA H100 PCIe"), 100, 315, 8 * GIB, None),
        (gpus(8, H100), 100, 315, 8 * GIB, None),
    ],
)
def test_an_all_reduce_has_to_reach_the_floor_of_its_machine(
    node: NodeNumbers, rate: float, expected: float, size: int, verdict: str | None
) -> None:
    """With messages of half the published size or more; smaller ones fail by what the hardware gives at their size."""
    shown = checks(node, probe("all_reduce", rate * 1e9, expected * 1e9, ranks=8, size=size))

    assert {one.verdict for what, one in shown.items() if what.startswith("Azure") and "all_reduce" in what} == (
        set() if verdict is None else {verdict}
    )


def test_a_floor_that_small_messages_cannot_reach_is_no_verdict_on_the_hardware() -> None:
    """H100 reaches it with 16 GB, and not with 64 MiB."""
    shown = checks(machine(), probe("all_reduce", 360e9, 361.8e9, ranks=8, size=GIB // 16))

    check = next(one for what, one in shown.items() if what.startswith("Azure") and "all_reduce" in what)
    assert check.detail.startswith("this hardware cannot meet it at this size; ")


def test_copies_and_pairs_have_floors_of_their_machine() -> None:
    """Of the path that they are published for: PCIe gen 4 x16 of an A100, and no slot of another kind.

    What a model expects of a pair makes it no fault.
    """
    node = machine(A100, version="3.0")
    links = pairs({(0, 1): 190e9, (1, 0): 240e9}, 240e9, both_ways=400e9)
    shown = checks(node, host_copies({0: (22e9, 22e9), 1: (22e9, 15e9)}), links)
    name = "Azure ND A100 v4: "

    assert (shown[f"{name}copies between GPU and host"].verdict, shown[f"{name}copies between GPU and host"].where) == (
        "failed", "GPU1"
    )  # fmt: skip
    assert (shown[f"{name}GPU to GPU"].verdict, shown[f"{name}GPU to GPU"].where) == ("notice", "GPU0 to GPU1")
    firm = probe("pairs", None, None, ranks=2, measure="pairs", source="configured")
    links |= {"commwatch_probe_info": firm["commwatch_probe_info"]}
    assert checks(node, links)[f"{name}GPU to GPU"].verdict == "failed"
    other = checks(machine(), host_copies({0: (20e9, 20e9)}))
    assert other["Azure ND H100 v5: copies between GPU and host"].verdict == "not measured"


@in_one_pass("speed, layer, shown", [(50e9, "InfiniBand", 1), (25e9, "InfiniBand", 0),
                                                        (50e9, "Ethernet", 0)])  # fmt: skip
def test_writes_between_nodes_are_shown_as_not_measured(speed: float, layer: str, shown: int) -> None:
    """Of adapters of the published rate alone."""
    port = ("mlx5_0", "1")
    numbers: NodeNumbers = {
        "commwatch_rdma_port_info": {(*port, layer, "", "", "", "", "", ""): 1},
        "commwatch_rdma_port_speed_bytes_per_second": {port: speed},
    }
    found = [one for what, one in checks(machine(), numbers).items() if "RDMA writes" in what]

    assert [(one.verdict, one.required) for one in found] == [("not measured", "at least 47.5 GB/s")] * shown


# --- those of a site ---


@pytest.fixture
def site(tmp_path: Path) -> Callable[[str], SiteFloors]:
    """``site(text)``: the floors of a file with that text."""

    def read(text: str = SITE) -> SiteFloors:
        file = tmp_path / "site.yaml"
        file.write_text(text, encoding="utf-8")
        return read_floors(file)

    return read


def test_a_site_s_floor_fails_whatever_the_hardware_is_expected_to_give(site: Callable[..., SiteFloors]) -> None:
    """At its edge; of measures without a young result, and of other machines, it says so and nothing more."""
    floors, name = site(), f"floor of this site: {MEASURE}"
    for rate, verdict, word in ((350e9, "passed", "OK"), (349e9, "failed", "Warning")):
        node = (machine(), probe("all_reduce", rate, 315e9, ranks=8))
        facts = known_of(merged(*node)).facts
        assert checks(*node, asked=Asked(floors=floors))[name].verdict == verdict
        said, _ = preflight(facts, Asked(PROFILES["7b"], floors=floors), NOW, 3600.0)
        assert said.verdict == word
        assert (f"{name} is 349 GB/s, not at least 350 GB/s" in said.reason) == (word == "Warning")
    shown = checks(machine(), asked=Asked(floors=floors))
    assert (shown[name].verdict, shown[name].source.endswith("site.yaml; last winter")) == ("not measured", True)
    assert checks(machine(H200), asked=Asked(floors=floors))["floor of this site: any"].verdict == "does not apply"


def test_a_site_s_floor_fails_a_diagnosis_without_a_profile(site: Callable[..., SiteFloors]) -> None:
    """The site has asked for it; published floors stay a notice."""
    node = merged(machine(), probe("all_reduce", 300e9, 361.8e9, ranks=8))
    known = replace(known_of(node), asked=Asked(floors=site()))

    found = diagnose(known, "quick")
    assert [one.what for one in found.checks if one.verdict == "failed"] == [f"floor of this site: {MEASURE}"]
    assert found.verdict.word == "Warning"
    assert diagnose(known_of(node), "quick").verdict.word != "Warning"


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "said"),
    [
        ("floors:", "floor:", 2, "floor", "did you mean floors?"),
        ("    gpus: 8\n    measure: all", "    gpu_count: 8\n    measure: all", 4, "floors[0].gpu_count", "gpus"),
        ("    at_least: 40GB/s\n", "", 8, "floors[1].at_least", "is missing"),
        ("350GB/s", "350", 6, "floors[0].at_least", "such as"),
        ("350GB/s", "0GB/s", 6, "floors[0].at_least", "expected more than 0"),
        ("gpus: 8\n    measure: all", "gpus: 0\n    measure: all", 4, "floors[0].gpus", ">= 1"),
        ("copy host to device, 16 MiB", "copies", 10, "floors[1].measure", "such as 'all_reduce bus bandwidth"),
        ("copy host to device, 16 MiB", MEASURE, 10, "floors[1].measure", "is already set in floors[0]"),
    ],
)
def test_bad_floors_are_one_line_with_file_line_and_key(
    old: str, new: str, line: int, key: str, said: str, site: Callable[..., SiteFloors], tmp_path: Path
) -> None:
    """And what would be right."""
    with pytest.raises(ConfigError) as caught:
        site(SITE.replace(old, new, 1))

    assert str(caught.value).startswith(f"{tmp_path / 'site.yaml'}:{line}: {key}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# --- learned ---


def diagnosis(folder: Path, name: str, rate: float, gpu: str = H100, simulated: str | None = None) -> str:
    """A saved diagnosis of a node whose all_reduce gave that rate, in GB/s."""
    node = merged(machine(gpu), probe("all_reduce", rate * 1e9, None, ranks=8), host_copies({0: (24e9, 23e9)}))
    file = folder / name
    file.write_bytes(msgspec.json.encode(diagnose(known_of(node, simulated=simulated), "full")))
    return str(file)


def test_floors_are_learned_from_good_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The quantile of each measure and kind of node, less the margin; the file is read back and is never replaced."""
    nodes = [diagnosis(tmp_path, f"{number}.json", 300 + 10 * number) for number in range(11)]
    nodes.append(diagnosis(tmp_path, "other.json", 400, H200))
    output = str(tmp_path / "site.yaml")
    learn = ("marks", "learn", "--output", output)

    assert run_command(Config(), *learn, *nodes) == 0
    said = capsys.readouterr().out
    assert "11 nodes with 8 x NVIDIA H100 80GB HBM3" in said
    assert "the 10 % quantile of each measure, less 5 %" in said
    floors = read_floors(Path(output))
    assert {one.measure: one.at_least for one in floors.of(H100, 8)} == {
        MEASURE: 0.95 * 310e9, "copy host to device, 64 MiB": 22.8e9, "copy device to host, 64 MiB": 21.85e9
    }  # fmt: skip
    assert {one.at_least for one in floors.of(H200, 8) if one.measure == MEASURE} == {380e9}
    assert "# 11 nodes with 8 x" in Path(output).read_text(encoding="utf-8")
    with pytest.raises(CommwatchError, match="is there already; --replace replaces it"):
        run_command(Config(), *learn, *nodes)
    with pytest.raises(CommwatchError, match="expected less than 100 %"):
        run_command(Config(), *learn, "--replace", "--margin", "100%", *nodes)
    assert run_command(Config(), *learn, "--replace", "--quantile", "50%", "--margin", "1%", "--json", *nodes) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["quantile"], told["margin"], len(told["nodes"]), told["left_out"]) == (0.5, 0.01, 12, [])
    assert read_floors(Path(output)).of(H100, 8)[0].at_least == 0.99 * 350e9


def test_a_node_that_is_not_good_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reason; without any good one nothing is written. Simulated nodes do not go with real ones."""
    good, bad = diagnosis(tmp_path, "good.json", 300), tmp_path / "bad.json"
    found = json.loads(Path(good).read_bytes())
    found["verdict"] |= {"word": "Warning", "line": "NVLink is down"}
    bad.write_text(json.dumps(found), encoding="utf-8")
    learn = ("marks", "learn", "--output", str(tmp_path / "site.yaml"))

    with pytest.raises(
        CommwatchError, match=r"no good node to learn from: .*bad\.json: Warning: NVLink is down"
    ) as none:
        run_command(Config(), *learn, str(bad))
    assert none.value.exit_code == 3
    assert not (tmp_path / "site.yaml").exists()
    with pytest.raises(UsageError, match="simulated nodes and real ones"):
        run_command(Config(), *learn, good, diagnosis(tmp_path, "simulated.json", 300, simulated="h100x8"))
    with pytest.raises(UsageError, match="named twice"):
        run_command(Config(), *learn, good, good)
    assert run_command(Config(), *learn, good, str(bad)) == 0
    told = capsys.readouterr()
    assert "left out: " in told.err
    assert "1 node with 8 x" in told.out
    assert "fewer than 5 nodes" in told.out


def test_a_daemon_is_asked_as_top_asks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it exposes counts; one that does not answer is left out."""
    known = known_of(merged(machine(), probe("all_reduce", 300e9, None, ranks=8)))

    def ask(endpoint: Endpoint) -> Documents:
        if endpoint.name == "gone:28029":
            raise DaemonAbsent("gone:28029: Connection refused")
        return Documents(
            known.findings,
            ProbesDocument(version="1", time=NOW, simulated=None, maintenance=None, probes=()),
            known.snapshot,
        )

    monkeypatch.setattr(Endpoint, "ask", ask)
    output = tmp_path / "site.yaml"

    assert run_command(Config(), "marks", "learn", "--output", str(output), "http://a:28029", "http://gone:28029") == 0
    assert [(one.measure, one.at_least) for one in read_floors(output).of(H100, 8)] == [(MEASURE, 285e9)]
