"""All rules together over whole pages: silent on healthy nodes, and what they say of any other holds together."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import cache
from itertools import permutations
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from commwatch.findings.causes import join
from commwatch.findings.codes import CODES
from commwatch.findings.finding import SEVERITIES, Match
from commwatch_exporters.catalogue import CATALOGUE
from support.examples import examples
from support.facts import HOUR, NOW, RULES, Numbers, facts_of, seen_in, shipped
from support.findings import incidents
from support.passes import in_one_pass

PAGES = Path(__file__).parents[2] / "golden"
PRESETS = sorted(page.stem for page in PAGES.glob("*.txt") if not page.stem.endswith("-opt-in"))
SMALL = ("a100x4", "rtx3090x4")
_SERIES = re.compile(r"(?P<metric>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'\w+="([^"]*)"')

Page = dict[str, dict[tuple[str, ...], float]]


@cache
def recorded(preset: str) -> Page:
    """What a healthy simulated node exposes, without histograms; the recording has the first GPU alone."""
    found: Page = {}
    for line in (PAGES / f"{preset}.txt").read_text(encoding="utf-8").splitlines():
        series = _SERIES.fullmatch(line)
        if series is not None and series["metric"] in CATALOGUE:
            labels = tuple(_LABEL.findall(series["labels"] or ""))
            found.setdefault(series["metric"], {})[labels] = float(series["value"])
    others = [labels[0] for labels in found["commwatch_pcie_device_info"] if labels[1] == "gpu"]
    for metric, rows in found.items():
        if CATALOGUE[metric].labels[:2] == ("gpu", "pci_bus_id"):
            for index, address in enumerate(sorted(others)):
                rows |= {
                    (str(index), address, *labels[2:]): value for labels, value in rows.items() if labels[0] == "0"
                }
    return found


def measured(preset: str) -> Page:
    """The same node with good results of probes, and jobs that have nothing to report."""
    page = {metric: dict(series) for metric, series in recorded(preset).items()}
    probe = ("all_reduce", "nccl")
    good = {
        "bandwidth_utilization_ratio": 0.95, "latency_spike_streak": 0, "low_bandwidth_streak": 0,
        "latency_drift_ratio": 1.0, "bandwidth_drift_ratio": 1.0, "latency_step_ratio": 1.0,
        "bandwidth_step_ratio": 1.0, "rank_balance_ratio": 0.98, "attempts_total": 9,
        "last_completion_timestamp_seconds": NOW - 300,
    }  # fmt: skip
    page |= {f"commwatch_probe_{name}": {probe: value} for name, value in good.items()}
    page["commwatch_probe_failures_total"] = {(*probe, reason): 0 for reason in ("nccl_error", "wrong_result")}
    page["commwatch_probe_skips_total"] = {(*probe, reason): 0 for reason in ("budget", "gpu_busy")}
    page["commwatch_probe_info"] = {(*probe, "all_reduce", "8", "64", "4", "", "", "", "reference"): 1}
    gpus = [labels[0] for labels in page["commwatch_gpu_info"]]
    ways: dict[tuple[str, ...], float] = {(source, target, "nccl"): 1e10 for source, target in permutations(gpus, 2)}
    page["commwatch_pair_bandwidth_bytes_per_second"] = ways
    page["commwatch_pair_expected_bandwidth_bytes_per_second"] = dict(ways)
    page["commwatch_nccl_log_errors_total"] = {(category,): 0 for category in ("ib_retry", "cuda", "timeout", "shm")}
    page["commwatch_nccl_setting_processes"] = {("NCCL_P2P_DISABLE", "p2p_off", "harmful"): 0}
    return page


def look(now: Numbers, before: Numbers) -> list[Match]:
    facts = facts_of(now, history={2.5 * HOUR: before, 60.0: now})
    return [match for rule in RULES for match in rule.evaluate(facts, shipped())]


def gravest(matches: list[Match]) -> int:
    return min((SEVERITIES.index(CODES[one.code].severity) for one in matches), default=len(SEVERITIES))


def disturbed(page: Page, dice: random.Random) -> Page:
    """The page with some numbers changed, to anything."""
    now = {metric: dict(series) for metric, series in page.items()}
    if dice.random() < 0.3:
        now["commwatch_suspect_ratio"] = {("gpu", "GPU1"): 0.9}
    places = [(metric, labels) for metric, series in now.items() for labels in series]
    for metric, labels in dice.sample(places, dice.choice((1, 5, 40))):
        value = now[metric][labels]
        now[metric][labels] = dice.choice((0.0, 1.0, 2.0, 3.0, 50.0, 1e9, 0.3 * value, value + 3))
    return now


@in_one_pass("preset", PRESETS)
def test_a_healthy_node_has_nothing_to_act_on(preset: str) -> None:
    """Of every preset; what is only worth knowing may be said."""
    page = measured(preset)

    assert [one for one in look(page, page) if CODES[one.code].severity != "info"] == []


@examples(25)
@given(st.sampled_from(SMALL), st.randoms(use_true_random=True))
def test_the_order_of_the_series_does_not_matter(preset: str, dice: random.Random) -> None:
    """A page in another order says the same of the same parts."""
    page = measured(preset)
    now = disturbed(page, dice)
    shuffled = {metric: dict(dice.sample(list(now[metric].items()), len(now[metric]))) for metric in dice.sample(
        sorted(now), len(now)
    )}  # fmt: skip

    first, second = (
        {(one.code, one.component): frozenset(one.evidence) for one in look(some, page)} for some in (now, shuffled)
    )
    assert first == second


SAYS_SOMETHING_BY_ITS_ABSENCE = {"commwatch_probe_last_completion_timestamp_seconds"}
"""A probe without it has never had a result."""


@examples(25)
@given(st.sampled_from(SMALL), st.randoms(use_true_random=True))
def test_the_verdict_is_not_graver_when_a_metric_goes_away(preset: str, dice: random.Random) -> None:
    """What is not read any more accuses nobody."""
    page = measured(preset)
    now = disturbed(page, dice)
    whole = gravest(look(now, page))

    for left_out in dice.sample(sorted(now.keys() - SAYS_SOMETHING_BY_ITS_ABSENCE), 4):
        assert gravest(look({metric: now[metric] for metric in now if metric != left_out}, page)) >= whole


@examples(25)
@given(st.sampled_from(SMALL), st.randoms(use_true_random=True))
def test_what_is_seen_is_told_with_evidence(preset: str, dice: random.Random) -> None:
    """Each match has a code of the list and evidence, and stands in the verdict, for itself or as a cause."""
    page = measured(preset)
    seen = {(one.code, one.component.identity): one for one in look(disturbed(page, dice), page)}
    told = join(incidents(seen.values(), NOW))

    assert all(one.evidence for one in seen.values())
    causes = {(cause.code, cause.component.identity) for one in told for cause in one.causes}
    assert {one.key for one in told} | causes == seen.keys()


LABELS = {
    "gpu": "0", "pci_bus_id": "0000:17:00.0", "peer": "1", "peer_pci_bus_id": "0000:18:00.0", "link": "3",
    "device": "0000:17:00.0", "parent": "0000:16:00.0", "role": "gpu", "severity": "correctable", "xid": "79",
    "sxid": "20034", "message": "fallen_off_bus", "check": "route_unhealthy", "reason": "hw_slowdown",
    "aspect": "generation", "capability": "nvlink", "service": "nvidia-fabricmanager", "direction": "transmit",
}  # fmt: skip
HARDWARE = ("gpu", "nvlink", "nvswitch", "fabric", "service", "pcie", "c2c", "kernel_log", "rdma", "ethernet")
METRICS = [
    family.name
    for family in CATALOGUE.values()
    if family.type != "histogram" and family.name.startswith(tuple(f"commwatch_{one}" for one in HARDWARE))
]
ODD_NUMBERS = st.one_of(st.integers(0, 300), st.sampled_from([-1, 2**32 - 1, 2**63, 0.5, 1e-15, 1e-9, 1e300]))
MOVED = st.dictionaries(st.sampled_from(METRICS), st.tuples(ODD_NUMBERS, ODD_NUMBERS), max_size=len(METRICS))
"""Metrics, each with a number of half a minute ago and one of now."""


def series(values: Mapping[str, float]) -> Numbers:
    """One series of each metric, all of them of parts that belong together."""
    return {
        metric: {tuple(LABELS.get(label, "x") for label in CATALOGUE[metric].labels): value}
        for metric, value in values.items()
    }


@given(MOVED)
def test_no_number_breaks_a_rule(moved: dict[str, tuple[float, float]]) -> None:
    """Whatever stands there, and however it moved: a rule matches codes of the list with evidence, or nothing."""
    earlier, now = (series({metric: numbers[at] for metric, numbers in moved.items()}) for at in (0, 1))

    seen_in(facts_of(now, {30.0: earlier}))
