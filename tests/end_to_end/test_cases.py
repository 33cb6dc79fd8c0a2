"""The published cases, each from a simulated node to what the commands print, as docs/using/cases.md has it.

``make cases`` writes the outputs again. Time, sources and ranks are those of ``support.simulated_daemon``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from commwatch import __main__
from commwatch.config.yaml_file import load_config
from support.simulated_daemon import Change, SimulatedDaemon, rehearsed

Show: TypeAlias = Callable[[str, str], None]

CASES = Path(__file__).parents[2] / "docs/using/cases"
"""Nodes, faults and logs of the published cases."""
PAGE = CASES.with_suffix(".md")
SHOWN = (
    "two nodes job", "rtx3090x4", "a10gx8", "a100pcie", "h100rails run", "h100rails log",
    "h100rails over time",
)  # fmt: skip
"""All outputs of the page."""


def show(name: str, output: str, *, write: bool) -> None:
    """Hold the block of the page that stands below ``<!-- output: NAME -->`` against an output, or write it.

    Args:
        name: of the block.
        output: what was printed.
        write: put it there instead of comparing.
    """
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(rf"<!-- output: {re.escape(name)} -->\n```\n.*?^```\n", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, f"{PAGE.name} has {len(blocks)} blocks for {name}"
    block = f"<!-- output: {name} -->\n```\n{output.strip()}\n```\n"
    if write:
        PAGE.write_text(page.replace(blocks[0], block), encoding="utf-8")
        return
    difference = "\n".join(unified_diff(blocks[0].splitlines(), block.splitlines(), "the page", "printed", lineterm=""))
    assert not difference, f"if this is meant: make cases\n{difference}"


def names_on_the_page() -> list[str]:
    """The outputs that the page has."""
    return re.findall(r"^<!-- output: (.+) -->$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def until(output: str, line: str) -> str:
    """An output up to a line that begins like this, and a mark that there is more; all of it has to have the line."""
    lines = output.splitlines()
    end = next(place for place, text in enumerate(lines) if text.startswith(line))
    return "\n".join([*lines[:end], "[...]"])


def passages(output: str, *spans: tuple[str, str]) -> str:
    """Of an output what is from a line that begins like the first up to one that begins like the second, each time."""
    shown = []
    for first, end in spans:
        lines = output.splitlines()
        begin = next(place for place, text in enumerate(lines) if text.startswith(first))
        output = "\n".join(lines[begin:])
        shown.append(until(output, end))
    return "\n".join(shown)


@pytest.fixture(name="shown")
def shown_fixture(request: pytest.FixtureRequest) -> Show:
    """Holds an output against the page, or writes it there."""
    write = bool(request.config.getoption("--update-golden"))
    return lambda name, output: show(name, output, write=write)


@contextmanager
def scenario(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDaemon]:
    """The node of a case with its faults and its job's log, as ``docs/using/cases`` has them."""
    node, log = CASES / f"{name}.yaml", CASES / f"{name}-job.log"
    with rehearsed(
        str(node) if node.exists() else name,
        folder,
        monkeypatch,
        faults=(CASES / f"{name}-faults.yaml").read_text(encoding="utf-8"),
        job_log=log.read_text(encoding="utf-8") if log.exists() else "",
    ) as daemon:
        yield daemon


def told(daemon: SimulatedDaemon, *arguments: str) -> dict[str, Any]:
    """The JSON of a command."""
    document = json.loads(daemon.command(*arguments, "--json")[1])
    assert isinstance(document, dict)
    return document


def one_line(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


def test_the_page_shows_every_output() -> None:
    """No block is left behind, and none is missing."""
    assert sorted(names_on_the_page()) == sorted(SHOWN)


def test_the_page_names_every_file_of_the_cases() -> None:
    """A scenario that nobody finds is none; the configuration that it gives is one."""
    page = PAGE.read_text(encoding="utf-8")

    assert [file.name for file in CASES.iterdir() if f"cases/{file.name}" not in page] == []
    assert load_config(CASES / "commwatch.yaml").sources.nccl_logs.paths == ("/tmp/case-job.log",)


def test_two_nodes_are_slower_than_one_because_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one of the nodes: its interface is nearly full during the job, its GPUs idle; GPUs come from its inventory.

    The range holds what was observed, the network is to blame, one node is chosen, with ZeRO-1 for the A10's memory.
    """
    command = (
        "estimate --parameters 1.5B --strategy zero3 --nodes 2 --micro-batches 2 --step-time 1.03s --network "
        "8.74Gbit/s 9.28Gbit/s"
    )
    asked = command.split()
    with scenario("a10", tmp_path, monkeypatch) as daemon:
        daemon.until(30)
        before = daemon.snapshot()
        daemon.until(40)
        after = daemon.snapshot()
        code, output = daemon.command(*asked)
        document = told(daemon, *asked)
        observed_step = told(daemon, *asked, "--observed-step", "8.68s")

    sent = [value for one in (before, after) for _, value in one.samples("commwatch_ethernet_transmit_bytes_total")]
    assert (sent[1] - sent[0]) / 600 == pytest.approx(2 * 4.5e9 / 8.68, rel=0.02)
    assert {value for _, value in after.samples("commwatch_gpu_utilization_ratio")} == {0.24}
    assert code == 0
    waiting, observed = document["waiting_per_micro_batch_seconds"], (3.1, 4.1)
    assert waiting["low"] <= observed[0] < observed[1] <= waiting["high"]
    assert document["layout"]["gpus_per_node"] == 2
    assert document["bottleneck"] == {"part": "network", "certain": True}
    assert document["choice"] == {"strategy": "zero1", "nodes": 1, "gpus_per_node": 2}
    assert observed_step["bottleneck"] == {"part": "network", "certain": True}
    assert "1,500,000,000 × 2 bytes = 3,000,000,000 bytes = 3 GB" in one_line(output)
    assert "- 2 nodes do 0.284 to 0.935 times the work of one node with ZeRO-3: slower than one node." in one_line(
        output
    )


def test_both_nodes_say_that_the_network_is_the_bottleneck(
    shown: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 13 minutes of the job: each sends what the other receives, and its GPUs wait for that."""
    outputs, received, sent = [], [], []
    for name in ("node1", "node2"):
        (tmp_path / name).mkdir()
        with scenario("a10", tmp_path / name, monkeypatch) as daemon:
            for minute in range(1, 26):
                daemon.until(minute - 0.25, step=60)
                daemon.until(minute)  # close enough for a rate
            (finding,) = told(daemon, "diagnose")["findings"]
            outputs.append(daemon.command("diagnose")[1])
            samples = daemon.snapshot().samples
            received += [value for _, value in samples("commwatch_ethernet_receive_bytes_total")]
            sent += [value for _, value in samples("commwatch_ethernet_transmit_bytes_total")]
        assert (finding["code"], finding["component"]["name"]) == ("job_network_bound", "job on GPU0, GPU1")

    assert sent == pytest.approx(received[::-1], rel=0.02)
    assert outputs[0] == outputs[1]
    shown("two nodes job", passages(outputs[0], ("warning: ", "Communication score")))


def test_the_pair_under_one_switch_is_the_slow_one(
    shown: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is recommended before it was measured; then the pair is named, and two GPUs across the switches."""
    with scenario("rtx3090x4", tmp_path, monkeypatch) as daemon:
        daemon.until(12)
        before = one_line(daemon.command("diagnose", "--all")[1])
        code, output = daemon.command("diagnose", "--full-scan")
        checks = told(daemon, "diagnose", "--full-scan")["checks"]
    after = one_line(output)

    assert "GPU0-GPU1" not in before
    assert "No matrix of pairs is current; commwatch diagnose --full-scan measures it." in before
    assert code == 1
    assert "GPUs under one PCIe switch are slower than distant ones: GPU0-GPU1" in after.split("warning:")[0]
    assert "until then train on GPUs of different switches" in after
    fastest = re.search(r"the fastest two are GPU(\d) and GPU(\d)", " ".join(one["next_step"] for one in checks))
    assert fastest is not None
    assert {int(fastest[1]) // 2, int(fastest[2]) // 2} == {0, 1}
    shown("rtx3090x4", output)


def test_a_node_whose_gpus_reach_each_other_slowly_is_refused_before_the_job(
    shown: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the step to expect, from what was measured here; a simulated node is never more than unknown."""
    profile = str(CASES / "falcon-7b.yaml")
    asked = ("healthcheck", "--require", profile, "--step-time", "100ms")
    with scenario("a10gx8", tmp_path, monkeypatch) as daemon:
        daemon.until(12)
        daemon.probe()
        code, line = daemon.command(*asked)
        refused, why = daemon.command(*asked, simulated=False)
        _, output = daemon.command("diagnose", "--profile", profile, "--step-time", "100ms")

    assert (code, refused) == (2, 1)
    for said in (line, why):
        step = re.search(r"falcon-7b: a step of ([\d.]+) s to ([\d.]+) s over 8 GPUs, 100 ms on one alone", said)
        assert step is not None
        assert 25 < float(step[1]) <= float(step[2]) < 35
    assert why.startswith("Warning: ")
    assert re.search(r"^failed +PCIe gen 4 x16, two GPUs under .* at least 48 GB/s$", output, re.MULTILINE)
    assert re.search(r"^failed +falcon-7b: share of a step for .* at most 50 %$", output, re.MULTILINE)
    shown("a10gx8", line)


def test_a_stalling_run_has_a_narrow_link_and_a_small_buffer(
    shown: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank that others wait for is that of the narrow link; the setting is seen beside it, both well before."""
    with scenario("a100pcie", tmp_path, monkeypatch) as daemon:
        daemon.until(13)
        daemon.probe()
        healthy = told(daemon, "diagnose")["verdict"]["word"]
        daemon.until(35)
        use = {value for _, value in daemon.snapshot().samples("commwatch_gpu_utilization_ratio")}
        findings = told(daemon, "diagnose")["findings"]
        code, output = daemon.command("diagnose")

    assert healthy == "OK"
    assert use == {0.45}
    timeouts, setting, half_used = findings
    assert (timeouts["code"], timeouts["severity"]) == ("nccl_timeouts", "critical")
    [cause] = timeouts["causes"]
    assert (cause["code"], cause["component"]["name"]) == ("pcie_width_dropped", "PCIe link of GPU2")
    assert (setting["code"], half_used["code"]) == ("nccl_setting_suspicious", "job_half_used")
    assert [one["component"]["name"] for one in timeouts["also_seen"]] == ["NCCL_BUFFSIZE"]
    assert code == 1
    shown("a100pcie", passages(output, ("Critical: ", "info: ")))


STEP_SECONDS = 120.0
"""Between two looks at the node of the last case, which runs for hours; a free one is probed as often."""
PROBED_FROM = 12
"""Minutes after the boot."""


class Course:
    """What the page of a daemon said at each look, and what that is over time."""

    def __init__(self, daemon: SimulatedDaemon) -> None:
        self._daemon = daemon
        self._counts: dict[float, dict[str, float]] = {}
        """By minute."""

    def until(self, minutes: float) -> None:
        """Let time pass; probe whenever the node is free."""
        daemon = self._daemon
        for minute in range(round(daemon.time / 60) + 2, round(minutes) + 1, 2):
            daemon.until(minute, step=STEP_SECONDS)
            if daemon.is_free and minute >= PROBED_FROM:
                daemon.probe("all_reduce")
            self._counts[minute] = {
                metric: sum(value for _, value in daemon.snapshot().samples(metric)) for metric in COUNTED
            }

    def line(self, minute: int) -> str:
        """Of the table over time."""
        errors = self._rise(LOG_ERRORS, minute, 10)
        attempts = self._rise("commwatch_probe_attempts_total", minute, 120)
        failed = self._rise("commwatch_probe_failures_total", minute, 120) / attempts if attempts else 0.0
        symbols = self._rise("commwatch_rdma_port_symbol_errors_total", minute, 60)
        return f"{minute // 60}:{minute % 60:02} h  {errors:10g}  {symbols:13g}  {100 * failed:11.0f} %  "

    def _rise(self, metric: str, minute: int, window: int) -> float:
        before = self._counts.get(minute - window, {}).get(metric, 0.0)
        return self._counts[minute][metric] - before


LOG_ERRORS = "commwatch_nccl_log_errors_total"
COUNTED = (
    LOG_ERRORS,
    "commwatch_probe_attempts_total",
    "commwatch_probe_failures_total",
    "commwatch_rdma_port_symbol_errors_total",
)


def open_codes(changes: list[Change], minute: int) -> str:
    """The codes of the findings that were open then."""
    codes: dict[tuple[str, str], None] = {}
    for change in changes:
        if change.seconds <= 60 * minute:
            if change.event == "opened":
                codes[change.code, change.component] = None
            else:
                del codes[change.code, change.component]
    return ", ".join(code for code, _ in codes) or "none"


def test_a_bad_rail_is_named_and_its_errors_are_seen_to_fall_after_the_repair(
    shown: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Category and rail while the run fails, the share of failures while the node is free, and nothing at the end."""
    with scenario("h100rails", tmp_path, monkeypatch) as daemon:
        course = Course(daemon)
        course.until(58)
        assert [change for change in daemon.changes if change.event == "opened"] == []
        course.until(90)
        run, during = told(daemon, "diagnose")["findings"], daemon.command("diagnose")[1]
        course.until(160)  # repaired now
        free = told(daemon, "diagnose")["findings"]
        course.until(280)
        repaired = told(daemon, "diagnose")

    [timeouts] = run
    codes = [(cause["code"], cause["component"]["key"]) for cause in timeouts["causes"]]
    assert (timeouts["code"], codes[0]) == ("nccl_timeouts", ("rdma_errors", "mlx5_3/1"))
    assert ("nccl_errors", "ib_retry") in codes
    [rate] = [finding for finding in free if finding["code"] == "probe_error_rate_rise"]
    [share] = [fact["value"] for fact in rate["evidence"] if fact["what"] == "share of attempts that fail"]
    assert share == pytest.approx(0.13, abs=0.01)
    assert repaired["findings"] == []
    assert open_codes(daemon.changes, 280) == "none"
    closed = {change.code for change in daemon.changes if change.event == "closed" and change.seconds > 160 * 60}
    assert {"rdma_errors", "nccl_timeouts", "probe_error_rate_rise"} <= closed

    head = "time    log errors  symbol errors  failed probes  open findings\n        10 min      1 h            2 h\n"
    minutes = (58, 70, 90, 130, 160, 200, 240, 280)
    table = "\n".join(course.line(minute) + open_codes(daemon.changes, minute) for minute in minutes)
    shown("h100rails run", passages(during, ("Warning: ", "Communication score")))
    shown("h100rails over time", head + table)


def test_the_log_of_the_run_names_the_error_and_what_came_first(
    shown: Show, capsys: pytest.CaptureFixture[str]
) -> None:
    """A transfer over the rail that was given up, not the processes that waited for it."""
    log = CASES / "h100rails-job.log"
    code = __main__.main(["diagnose", "--log", str(log)])
    output = capsys.readouterr().out.replace(str(log), "docs/using/cases/h100rails-job.log")

    assert code == 1
    shown("h100rails log", until(output, "Later (2)"))
