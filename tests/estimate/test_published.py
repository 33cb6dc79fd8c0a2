"""Published trainings against the estimate: one half fitted the shares of the peak, the other was set aside."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import pytest

from commwatch.config.settings import Config, Paths
from commwatch.units import parse_rate
from support.command_line import run_command

Row: TypeAlias = dict[str, str]

with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
    ROWS: list[Row] = list(csv.DictReader(file))
SLOWEST_TCP_RATE = 4.2e9 / 8
"""The bandwidth that the command assumes for the slow end of a faster interface, bytes per second."""
DOCUMENT = Path(__file__).parents[2] / "docs/using/estimate.md"


def is_aside(row: Row) -> bool:
    """Whether a point was kept from the fit: its name decides, whatever was observed."""
    return hashlib.sha256(row["name"].encode()).digest()[0] % 2 == 1


def observed_seconds(row: Row) -> float:
    """Of a step, as published or from the published tokens per second."""
    if row["step_seconds"]:
        return float(row["step_seconds"])
    return int(row["tokens"]) * int(row["micro_batches"]) / float(row["tokens_per_second_per_gpu"])


def estimated(row: Row, state: Path, observed_step: str = "") -> Any:
    """What the command answers; of a network of which only the line rate was published it takes what it does here."""
    line = parse_rate(row["line_rate"]) if row["line_rate"] else 0.0
    network = f"{min(line / 2, SLOWEST_TCP_RATE):.0f}B/s {line:.0f}B/s" if line else row["network"]
    options = {
        "parameters": row["parameters"], "trainable": row["trainable"], "strategy": row["strategy"],
        "nodes": row["nodes"], "gpus": row["gpus"], "gpu": row["gpu"], "micro-batches": row["micro_batches"],
        "tokens": row["tokens"], "step-time": row["alone_seconds"] and f"{row['alone_seconds']}s",
        "precision": row["precision"], "intra-node": row["in_node"], "observed-step": observed_step,
        "network": network,
    }  # fmt: skip
    words = ["--recompute"] if row["recompute"] == "yes" else []
    for option, value in options.items():
        values = value.split() if option in ("network", "intra-node") else [value]
        words += [f"--{option}", *values] if value else []
    with redirect_stdout(io.StringIO()) as out:
        assert run_command(Config(paths=Paths(state=str(state))), "estimate", *words, "--json") == 0
    return json.loads(out.getvalue())


def holds(span: Any, seconds: float) -> bool:
    """Whether a value lies in what is answered; an end that nobody knows has no limit."""
    high = span["high"]
    return bool(span["low"] <= seconds and (high is None or seconds <= high))


def is_inside(row: Row, state: Path) -> bool:
    """Whether what was observed lies within what the command answers."""
    return holds(estimated(row, state)["step_seconds"], observed_seconds(row))


def test_enough_points_with_their_source() -> None:
    """Each with a name of its own and a source that the page links; enough of many GPUs, over TCP, and of adapters."""
    page = DOCUMENT.read_text(encoding="utf-8")
    gpus = [int(row["nodes"]) * int(row["gpus"]) for row in ROWS]

    assert len({row["name"] for row in ROWS}) == len(ROWS) >= 25
    assert [row["name"] for row in ROWS if f"| `{row['source']}` |" not in page] == []
    assert (sum(count > 128 for count in gpus), sum(count > 500 for count in gpus)) >= (10, 5)
    assert sum(bool(row["line_rate"]) for row in ROWS) >= 4
    assert len({row["source"] for row in ROWS if row["trainable"]}) >= 3


@pytest.mark.parametrize("aside", [False, True])
def test_the_page_has_the_score(aside: bool, tmp_path: Path) -> None:
    """Of the half kept aside at least 80 % lie inside; the page shows both scores, and how wide the ranges are."""
    rows = [row for row in ROWS if is_aside(row) is aside]
    inside = sum(is_inside(row, tmp_path) for row in rows)
    steps = [estimated(row, tmp_path)["step_seconds"] for row in rows]
    width = median(step["high"] / step["low"] for step in steps if step["low"] < step["high"])

    assert inside >= 0.8 * len(rows)
    line = next(
        line
        for line in DOCUMENT.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {'kept aside' if aside else 'fitted'} | {len(rows)} |")
    )
    assert f"| {inside} ({round(100 * inside / len(rows))} %) | {width:.1f} |" in line


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_nothing_is_sure_against_an_observation(row: Row, tmp_path: Path) -> None:
    """A network that is surely the bottleneck is busy for less than the step; outside the range nothing is sure."""
    observed = observed_seconds(row)
    free = estimated(row, tmp_path)
    told = estimated(row, tmp_path, f"{observed:.6f}s")

    assert not told["bottleneck"]["certain"] or holds(free["step_seconds"], observed)
    if free["bottleneck"] == {"part": "network", "certain": True}:
        assert free["communication_seconds"]["low"] <= observed
