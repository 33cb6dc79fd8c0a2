"""Published trainings against the estimate: one half fitted the shares of the peak, the other was set aside."""

from __future__ import annotations

import argparse
import csv
import hashlib
from pathlib import Path
from typing import TypeAlias

import pytest

from commwatch.commands import estimate
from commwatch.config.settings import Config, Paths
from commwatch.diagnosis.estimate.answer import answer
from commwatch.diagnosis.estimate.request import read_request

Row: TypeAlias = dict[str, str]

with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
    ROWS: list[Row] = list(csv.DictReader(file))
DOCUMENT = Path(__file__).parents[2] / "docs/estimate.md"


def is_aside(row: Row) -> bool:
    """Whether a point was kept from the fit: its name decides, whatever was observed."""
    return hashlib.sha256(row["name"].encode()).digest()[0] % 2 == 1


def observed_seconds(row: Row) -> float:
    """Of a step, as published or from the published tokens per second."""
    if row["step_seconds"]:
        return float(row["step_seconds"])
    return int(row["tokens"]) * int(row["micro_batches"]) / float(row["tokens_per_second_per_gpu"])


def is_inside(row: Row, state: Path) -> bool:
    """Whether what was observed lies within what the command answers."""
    options = {
        "parameters": row["parameters"], "trainable": row["trainable"], "strategy": row["strategy"],
        "nodes": row["nodes"], "gpus": row["gpus"], "gpu": row["gpu"], "micro-batches": row["micro_batches"],
        "tokens": row["tokens"], "step-time": row["alone_seconds"] and f"{row['alone_seconds']}s",
        "network": row["network"], "intra-node": row["in_node"],
    }  # fmt: skip
    words = ["estimate", *(["--recompute"] if row["recompute"] == "yes" else [])]
    for option, value in options.items():
        values = value.split() if option in ("network", "intra-node") else [value]
        words += [f"--{option}", *values] if value else []
    parser = argparse.ArgumentParser()
    estimate.add_parser(parser.add_subparsers(), [])
    request = read_request(parser.parse_args(words), Config(paths=Paths(state=str(state))), 0.0)
    return answer(request).step_seconds.holds(observed_seconds(row))


def score(*, aside: bool, state: Path) -> tuple[int, int]:
    """Points inside, and all of a half."""
    rows = [row for row in ROWS if is_aside(row) is aside]
    return sum(is_inside(row, state) for row in rows), len(rows)


def test_enough_points_with_their_source() -> None:
    """At least 25, each with a name of its own and a source that the page links."""
    page = DOCUMENT.read_text(encoding="utf-8")

    assert len({row["name"] for row in ROWS}) == len(ROWS) >= 25
    assert [row["name"] for row in ROWS if f"| `{row['source']}` |" not in page] == []


@pytest.mark.parametrize("aside", [False, True])
def test_the_page_has_the_score(aside: bool, tmp_path: Path) -> None:
    """Of the half kept aside at least 80 % lie inside; the page shows both scores."""
    inside, count = score(aside=aside, state=tmp_path)

    assert inside >= 0.8 * count
    assert f"| {'kept aside' if aside else 'fitted'} | {count} |" in DOCUMENT.read_text(encoding="utf-8")
    assert f"| {inside} ({round(100 * inside / count)} %) |" in DOCUMENT.read_text(encoding="utf-8")
