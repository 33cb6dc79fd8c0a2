"""Published trainings against the estimate: one half fitted the shares of the peak, the others were kept aside."""

from __future__ import annotations

import csv
import hashlib
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import pytest

from commwatch.units import parse_rate
from support.estimates import estimated
from support.passes import in_one_pass

Row: TypeAlias = dict[str, str]


def table(name: str) -> list[Row]:
    """The rows of a file beside this one."""
    with (Path(__file__).parent / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


ROWS = table("published.csv")
LATER = table("published_later.csv")
"""Gathered before the model was changed for the last time, and compared with it afterwards."""
SLOWEST_TCP_RATE = 4.2e9 / 8
"""The bandwidth that the command assumes for the slow end of a faster interface, bytes per second."""
ANSWERS = Path(__file__).parent / "answers.csv"
"""What the command answers to each point."""
DOCUMENT = Path(__file__).parents[2] / "docs/using/estimate.md"


def is_aside(row: Row) -> bool:
    """Whether a point was kept from the fit: its name decides, whatever was observed."""
    return hashlib.sha256(row["name"].encode()).digest()[0] % 2 == 1


def observed_seconds(row: Row) -> float:
    """Of a step, as published or from the published tokens per second."""
    if row["step_seconds"]:
        return float(row["step_seconds"])
    return int(row["tokens"]) * int(row["micro_batches"]) / float(row["tokens_per_second_per_gpu"])


def answer_to(row: Row, observed_step: str = "") -> Any:
    """What the command answers; of a network of which only the line rate was published it takes what it does here."""
    line = parse_rate(row["line_rate"]) if row["line_rate"] else 0.0
    network = f"{min(line / 2, SLOWEST_TCP_RATE):.0f}B/s {line:.0f}B/s" if line else row["network"]
    options = {
        "parameters": row["parameters"], "trainable": row["trainable"], "strategy": row["strategy"],
        "nodes": row["nodes"], "gpus": row["gpus"], "gpu": row["gpu"] and f"'{row['gpu']}'",
        "micro-batches": row["micro_batches"], "tokens": row["tokens"],
        "step-time": row["alone_seconds"] and f"{row['alone_seconds']}s", "precision": row["precision"],
        "intra-node": row["in_node"], "observed-step": observed_step, "network": network,
    }  # fmt: skip
    words = [f"--{option} {value}" for option, value in options.items() if value]
    return estimated(" ".join([*words, *(["--recompute"] if row["recompute"] == "yes" else [])]))


@cache
def answers() -> dict[str, Any]:
    """To each row, by its name, without the observation."""
    return {row["name"]: answer_to(row) for row in ROWS + LATER}


def in_range(rows: list[Row]) -> list[Row]:
    """Those that the command does not call out of range."""
    return [row for row in rows if answers()[row["name"]].in_range]


def is_inside(row: Row) -> bool:
    """Whether what was observed lies within what the command answers."""
    return bool(answers()[row["name"]].step_seconds.holds(observed_seconds(row)))


def test_enough_points_with_their_source() -> None:
    """Each with a name of its own and a source with its address; enough of many GPUs, over TCP, and of adapters."""
    sources = {row["source"]: row["url"] for row in table("published_sources.csv")}
    gpus = [int(row["nodes"]) * int(row["gpus"]) for row in ROWS]
    rows = ROWS + LATER

    assert len({row["name"] for row in rows}) == len(rows) >= 25
    assert len(LATER) >= 15
    assert all(int(row["parameters"]) >= 10**9 for row in LATER)
    assert [row["name"] for row in rows if not sources.get(row["source"], "").startswith("https://")] == []
    assert (sum(count > 128 for count in gpus), sum(count > 500 for count in gpus)) >= (10, 5)
    assert sum(bool(row["line_rate"]) for row in ROWS) >= 4
    assert len({row["source"] for row in ROWS if row["trainable"]}) >= 3


@in_one_pass(
    "group, rows",
    [
        ("fitted", [row for row in ROWS if not is_aside(row)]),
        ("kept aside", [row for row in ROWS if is_aside(row)]),
        ("kept aside later", LATER),
    ],
)
def test_the_page_has_the_score(group: str, rows: list[Row]) -> None:
    """Of each group at least 80 % lie inside; the page shows how many, and how wide the ranges are."""
    rows = in_range(rows)
    inside = sum(map(is_inside, rows))
    steps = [answers()[row["name"]].step_seconds for row in rows]
    width = median(step.high / step.low for step in steps if step.low < step.high)

    assert inside >= 0.8 * len(rows)
    shown = f"| {group} | {len(rows)} | {inside} ({round(100 * inside / len(rows))} %) | {width:.1f} |"
    assert shown in DOCUMENT.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("rates", [False, True])
def test_the_published_runs_on_pcie_without_p2p(rates: bool) -> None:
    """All five of one report: without rates, and with those of the simulated node of docs/using/cases.md."""
    of_node = {"01": "5.01GB/s", "02": "12.7GB/s", "0123": "4.69GB/s"}
    rows = [row for row in ROWS if row["source"] == "torchtune"]

    assert len(rows) == 5
    for row in rows:
        rate = of_node.get(row["name"].rpartition("-")[2], "") if rates else ""
        assert answer_to({**row, "in_node": rate}).step_seconds.holds(observed_seconds(row)), row["name"]


def test_the_answers_are_those_that_were_recorded(request: pytest.FixtureRequest) -> None:
    """A step of each point, to four digits; ``--update-golden`` records it again, then the page's score is checked."""
    steps = {row["name"]: answers()[row["name"]].step_seconds for row in ROWS}
    shown = "name,fast_end_seconds,slow_end_seconds\n" + "".join(
        f"{name},{step.low:.4g},{step.high:.4g}\n" for name, step in steps.items()
    )
    if request.config.getoption("--update-golden"):
        ANSWERS.write_text(shown, encoding="utf-8")

    recorded = ANSWERS.read_text(encoding="utf-8")
    assert shown.splitlines() == recorded.splitlines(), (
        f"if this is meant: pytest {Path(__file__).name} --update-golden"
    )


@in_one_pass("row", ROWS + LATER)
def test_nothing_is_sure_against_an_observation(row: Row) -> None:
    """A network that is surely the bottleneck is busy for less than the step; outside the range nothing is sure."""
    observed = observed_seconds(row)
    free = answers()[row["name"]]

    assert not answer_to(row, f"{observed:.6f}s").bottleneck.certain or is_inside(row)
    if (free.bottleneck.part, free.bottleneck.certain) == ("network", True):
        assert free.communication_seconds.low <= observed
