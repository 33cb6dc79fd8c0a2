"""The file of faults: what it may say, and what it is told when it errs."""

from __future__ import annotations

import math

import pytest

from commwatch.errors import ConfigError
from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.faults.parse import parse_faults
from commwatch_rehearsal.simulation.presets import PRESETS
from support.passes import in_one_pass

STARTED_AT = 1_900_000_000.0


def parse(text: str, preset: str = "h100x8", written_after: float = 40.0) -> tuple[Fault, ...]:
    return parse_faults(text, "faults.yaml", PRESETS[preset], STARTED_AT, STARTED_AT + written_after)


@in_one_pass("text", ["", "\n", "# nothing yet\n", "[]"])
def test_an_empty_file_is_a_healthy_node(text: str) -> None:
    """No faults."""
    assert parse(text) == ()


def test_a_fault_without_a_time_begins_when_the_file_was_written() -> None:
    """And never ends; a file older than the node holds from the node's start."""
    (fault,) = parse("- {fault: nvlink_down, gpu: 3, link: 5}")

    assert (fault.kind, fault.gpu, fault.link, fault.start, fault.end) == ("nvlink_down", 3, 5, 40.0, math.inf)
    assert parse("- {fault: gpu_lost, gpu: 0}", written_after=-1000.0)[0].start == 0.0


def test_times_are_durations_since_the_start_or_dates() -> None:
    """at, until and for; a date needs its time zone."""
    texts = {
        "at: 30s": (30.0, math.inf),
        "at: 30s, for: 2m": (30.0, 150.0),
        "at: 30s, until: 1h": (30.0, 3600.0),
        "for: 10s": (40.0, 50.0),
        "until: 1m": (40.0, 60.0),
        "at: 2030-03-17T17:47:00Z": (20.0, math.inf),
        "at: 2030-03-17T18:47:00+01:00, for: 1s": (20.0, 21.0),
    }

    for text, times in texts.items():
        (fault,) = parse(f"- {{fault: gpu_lost, gpu: 0, {text}}}")
        assert (fault.start, fault.end) == times, text


def test_a_fault_comes_again_as_many_times_as_it_says() -> None:
    """At a steady interval from its begin on."""
    text = "- {fault: nvlink_down, gpu: 3, link: 5, at: 30s, for: 5s, every: 35s, times: 3}"
    found = parse(text)

    assert [(fault.start, fault.end, fault.link) for fault in found] == [(30, 35, 5), (65, 70, 5), (100, 105, 5)]


def test_a_fault_holds_from_its_start_until_just_before_its_end() -> None:
    """The start belongs to it, the end does not."""
    (fault,) = parse("- {fault: gpu_lost, gpu: 0, at: 30s, for: 10s}")

    assert [fault.active(time) for time in (29.999, 30.0, 39.999, 40.0)] == [False, True, True, False]


def test_rates_have_a_unit_or_are_per_second() -> None:
    """100 is 100/s; 3/h is once in twenty minutes."""
    for text, rate in {"100": 100.0, "100/s": 100.0, "30/min": 0.5, "3/h": 3 / 3600, "86.4/d": 0.001}.items():
        (fault,) = parse(f"- {{fault: nvlink_crc, gpu: 0, link: 0, rate: {text}}}")
        assert fault.settings["rate"] == pytest.approx(rate)


def test_what_a_fault_leaves_out_has_a_working_default() -> None:
    """A job uses a fifth of the links; a slow probe keeps what it does not name; a failing one gives a reason."""
    job, slow, failing = parse(
        "- {fault: job}\n- {fault: slow_probe, latency: 5}\n- {fault: failing_probe}\n",
    )

    assert job.settings["nvlink_utilization"] == 0.2
    assert slow.settings == {"latency": 5.0, "bandwidth": 1.0}
    assert failing.reason == "injected failure"
    assert job.strikes(0)
    assert job.strikes(7)


def test_a_fault_without_a_link_strikes_all_links_of_its_gpu() -> None:
    """And none of another GPU."""
    (fault,) = parse("- {fault: nvlink_down, gpu: 3}")

    assert fault.strikes(3, 0)
    assert fault.strikes(3, 17)
    assert not fault.strikes(2, 0)


@in_one_pass(
    "text, line, key, problem",
    [
        ("fault: gpu_lost", 1, "", "list of faults"),
        ("- gpu_lost", 1, "", "mapping"),
        ("- {gpu: 1}", 1, "fault", "missing"),
        ("- fault: gpu_lost\n  gpu: 0\n- fault: gpu_lots\n  gpu: 1", 3, "fault", "unknown kind 'gpu_lots'"),
        ("- fault: gpu_lost", 1, "gpu", "missing"),
        ("- fault: gpu_lost\n  gpu: 8", 2, "gpu", "from 0 to 7"),
        ("- fault: gpu_lost\n  gpu: all", 2, "gpu", "from 0 to 7"),
        ("- fault: gpu_lost\n  gpu: 0\n  link: 3", 3, "link", "unknown key"),
        ("- fault: gpu_lost\n  gpu: 0\n  gpu: 1", 3, "gpu", "twice"),
        ("- fault: gpu_lost\n  gpu: [0, 1]", 2, "gpu", "one value"),
        ("- fault: nvlink_down\n  gpu: 0\n  link: 18", 3, "link", "from 0 to 17"),
        ("- fault: nvlink_crc\n  gpu: 0", 1, "rate", "missing"),
        ("- fault: nvlink_crc\n  gpu: 0\n  rate: 0", 3, "rate", "such as 100/s"),
        ("- fault: nvlink_crc\n  gpu: 0\n  rate: 5/week", 3, "rate", "such as 100/s"),
        ("- fault: pcie_width\n  gpu: 0\n  lanes: 5", 3, "lanes", "1, 2, 4, 8 or 16"),
        ("- fault: pcie_generation\n  gpu: 0\n  generation: 7", 3, "generation", "from 1 to 6"),
        ("- fault: job\n  nvlink_utilization: 1.5", 2, "nvlink_utilization", "from 0 to 1"),
        ("- fault: slow_probe\n  latency: 0", 2, "latency", "from 0.001"),
        ("- fault: gpu_lost\n  gpu: 0\n  at: 30", 3, "at", "duration"),
        ("- fault: gpu_lost\n  gpu: 0\n  at: 2030-01-31T12:00:00", 3, "at", "time zone"),
        ("- fault: gpu_lost\n  gpu: 0\n  at: 2030-13-31T12:00:00Z", 3, "at", "month"),
        ("- fault: gpu_lost\n  gpu: 0\n  until: 39s", 3, "until", "not after the start"),
        ("- fault: gpu_lost\n  gpu: 0\n  until: 50s\n  for: 10s", 4, "for", "beside 'until'"),
        ("- fault: gpu_lost\n  gpu: 0\n  for: 10s\n  every: 30s", 4, "every", "needs 'every' and 'times'"),
        ("- fault: gpu_lost\n  gpu: 0\n  for: 10s\n  times: 3", 4, "times", "needs 'every' and 'times'"),
        ("- fault: gpu_lost\n  gpu: 0\n  for: 10s\n  every: 10s\n  times: 3", 4, "every", "longer than the fault"),
        ("- fault: gpu_lost\n  gpu: 0\n  every: 10s\n  times: 3", 3, "every", "longer than the fault"),
        ("- fault: ethernet_down", 1, "interface", "missing"),
        ("- fault: ethernet_down\n  interface: eth9", 2, "interface", "ens1np0"),
        ("- fault: gpu_lost\n  gpu: {", 2, "", "expected"),
        ("- fault: 'gpu_lost", 1, "", "end of stream"),
    ],
)
def test_bad_input_names_the_line_and_the_key(text: str, line: int, key: str, problem: str) -> None:
    """An error says file, line, key and what would be right."""
    with pytest.raises(ConfigError) as caught:
        parse(text)

    assert (caught.value.file, caught.value.line, caught.value.key) == ("faults.yaml", line, key)
    assert problem in caught.value.problem


def test_a_node_without_nvlink_has_no_nvlink_faults() -> None:
    """The error names the kind."""
    with pytest.raises(ConfigError, match="nvlink_down: the GPUs of this node have no NVLink"):
        parse("- {fault: nvlink_down, gpu: 0, link: 0}", preset="a10x2")
