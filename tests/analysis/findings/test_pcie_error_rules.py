"""Errors on PCIe links: what the allowed bit error ratio makes is normal; more is not, nor is what is lost for good."""

from __future__ import annotations

import pytest

from commwatch.findings.codes import next_step_of
from commwatch.findings.finding import Match
from support.facts import Numbers, before, codes_by, codes_of, facts_of, seen_by
from support.passes import in_one_pass

ADDRESS = "0000:17:00.0"
GPU0 = ("0", ADDRESS)
IDENTITY = f"pcie_link/{ADDRESS}"
REPLAYS = "commwatch_pcie_replays_total"
AER = "commwatch_pcie_aer_errors_total"
ROOT = "commwatch_pcie_aer_root_port_errors_total"
INFO: Numbers = {"commwatch_gpu_info": {(*GPU0, "GPU-1", "", "H100", "Hopper"): 1.0}}


def link(generation: float, lanes: float) -> Numbers:
    return {
        "commwatch_pcie_link_generation_max": {GPU0: generation},
        "commwatch_pcie_link_width_lanes": {GPU0: lanes},
    }


def replayed(count: float, more: Numbers, ago: float = 10.0) -> list[Match]:
    """What is matched of so many replays at a time, on a link that had 7 before."""
    history: dict[float, Numbers] = {290.0: {REPLAYS: {GPU0: 7.0}}, ago: {REPLAYS: {GPU0: 7.0 + count}}}
    return seen_by("pcie_replays", facts_of({REPLAYS: {GPU0: 7.0 + count}, **more}, history))


@in_one_pass(
    "generation, lanes, allowed",
    [(1, 16, 15), (3, 16, 40), (4, 16, 80), (5, 16, 155), (5, 8, 80), (6, 16, 310)],
)
def test_replays_have_a_floor_that_grows_with_the_link(generation: int, lanes: int, allowed: float) -> None:
    """In 5 min what DCGM expects at a bit error ratio of 1e-12: 0.15 to 3.84 a lane and minute, rounded up a minute."""
    assert codes_of(replayed(allowed + 1, link(generation, lanes))) == [("pcie_replays", IDENTITY)]
    assert replayed(allowed, link(generation, lanes)) == []


@pytest.mark.parametrize(("per_reading", "codes"), [(5.12, []), (5.5, [("pcie_replays", IDENTITY)])])
def test_replays_before_the_window_do_not_count(per_reading: float, codes: list[tuple[str, str]]) -> None:
    """A steady link at the allowed ratio stays below its limit, also where a reading spans the window's begin."""
    history: dict[float, Numbers] = {
        10.0 * ago - 0.004: {REPLAYS: {GPU0: float(int(per_reading * (40 - ago)))}} for ago in range(40, 0, -1)
    }
    now: Numbers = {REPLAYS: {GPU0: float(int(per_reading * 40))}}

    assert codes_of(seen_by("pcie_replays", facts_of({**now, **link(5, 16)}, history))) == codes


def test_replays_of_a_link_that_is_not_known_say_nothing() -> None:
    """Nor do those that nobody read."""
    assert replayed(1e6, {}) == []
    assert replayed(1e6, link(9, 16)) == []
    assert seen_by("pcie_replays", facts_of(link(5, 16))) == []


def test_a_retraining_after_replays_is_told_for_an_hour() -> None:
    """The replay number rolled over: the same packet failed again and again."""
    name = "commwatch_pcie_replay_rollovers_total"
    now: Numbers = {name: {GPU0: 1.0}}

    assert [one.code for one in seen_by("pcie_replays", facts_of(now, {10.0: {name: {GPU0: 0.0}}}))] == [
        "pcie_retrained"
    ]
    assert seen_by("pcie_replays", facts_of(now, {3700.0: {name: {GPU0: 0.0}}, 3600.0: now})) == []


@in_one_pass("severity, code", [("fatal", "pcie_fatal"), ("nonfatal", "pcie_nonfatal")])
@in_one_pass("origin", ["aer", "nvml"])
def test_what_is_lost_for_good_is_told_for_an_hour(severity: str, code: str, origin: str) -> None:
    """Whoever reports it: the GPU's own count and AER are one finding of its link."""
    metric, labels = (
        (AER, (ADDRESS, "gpu", severity)) if origin == "aer" else (f"commwatch_pcie_{severity}_errors_total", GPU0)
    )
    now: Numbers = {**INFO, metric: {labels: 2.0}}
    history: dict[float, Numbers] = {10.0: {metric: {labels: 1.0}}}

    [match] = seen_by("pcie_fatal", facts_of(now, history))
    assert (match.code, match.component.identity, match.component.name) == (
        code,
        IDENTITY,
        "PCIe link of GPU0",
    )
    assert seen_by("pcie_fatal", facts_of(now, {10.0: now})) == []
    assert seen_by("pcie_fatal", facts_of(now, {3700.0: history[10.0], 3600.0: now})) == []


def test_corrected_errors_have_the_floor_of_their_link() -> None:
    """Those of a switch port too."""
    port = "0000:15:00.0"
    now: Numbers = {
        AER: {(port, "switch_port", "correctable"): 500.0},
        "commwatch_pcie_device_link_generation_max": {(port,): 5},
        "commwatch_pcie_device_link_width_lanes": {(port,): 16},
    }

    def earlier(value: float) -> dict[float, Numbers]:
        return {10.0: {AER: {(port, "switch_port", "correctable"): value}}}

    assert codes_by("pcie_fatal", facts_of(now, earlier(344.0))) == [("pcie_corrected", f"pcie_link/{port}")]
    assert seen_by("pcie_fatal", facts_of(now, earlier(345.0))) == []
    assert seen_by("pcie_fatal", facts_of({AER: now[AER]}, earlier(0.0))) == []


PORT = "0000:14:00.0"
TREE: Numbers = {
    "commwatch_pcie_device_info": {
        (PORT, "root_port", "pci0000:14", "0", "0x8086", "0x352a"): 1.0,
        (ADDRESS, "gpu", PORT, "0", "0x10de", "0x2330"): 1.0,
    }
}


def test_both_ends_of_a_link_are_one_finding() -> None:
    """The port above the GPU and the GPU itself count what they see of the same link."""
    now: Numbers = {**TREE, **INFO, AER: {(ADDRESS, "gpu", "fatal"): 1.0, (PORT, "root_port", "fatal"): 3.0}}

    [match] = seen_by("pcie_fatal", facts_of(now, {10.0: before(now, {AER: dict.fromkeys(now[AER], 1.0)})}))
    assert match.component.identity == IDENTITY
    assert [one.what.partition("by ")[2] for one in match.evidence] == [f"{ADDRESS} (gpu)", f"{PORT} (root port)"]


@in_one_pass("reporters, named", [((ADDRESS,), ADDRESS), ((PORT,), PORT), ((ADDRESS, PORT), ADDRESS)])
def test_the_kernel_log_is_read_for_the_device_that_reports(reporters: tuple[str, ...], named: str) -> None:
    """The kernel names the error there, which may be the port above the GPU that the finding is about."""
    now: Numbers = {**TREE, **INFO, AER: {(one, "gpu", "nonfatal"): 1.0 for one in reporters}}

    [match] = seen_by("pcie_nonfatal", facts_of(now, {10.0: before(now, {AER: dict.fromkeys(now[AER], 1.0)})}))
    assert match.component.identity == IDENTITY
    assert next_step_of(match).startswith(f"Run journalctl -k -g {named}: ")


def test_a_root_port_speaks_for_a_device_that_cannot() -> None:
    """Unless something below it has told of the fatal error itself."""
    now: Numbers = {
        **TREE,
        ROOT: {(PORT, "fatal"): 1.0, (PORT, "correctable"): 9.0},
        AER: {(ADDRESS, "gpu", "fatal"): 1.0},
    }
    silent = before(now, {ROOT: {(PORT, "fatal"): 1.0, (PORT, "correctable"): 9.0}})
    both = before(now, {ROOT: {(PORT, "fatal"): 1.0}, AER: {(ADDRESS, "gpu", "fatal"): 1.0}})

    for history, teller in ((silent, "root port"), (both, "(gpu)")):
        [match] = seen_by("pcie_fatal", facts_of(now, {10.0: history}))
        assert (match.code, match.component.identity) == ("pcie_fatal", IDENTITY)
        assert teller in match.evidence[0].what
