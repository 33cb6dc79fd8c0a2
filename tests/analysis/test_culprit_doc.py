"""What docs/using/culprit.md says holds: limits of the code, results that meet the goals, a generator apart."""

from __future__ import annotations

import ast
import csv
import math
import re
from pathlib import Path

import pytest

from commwatch.probes.results.culprit import BANDWIDTH_RULE, FIRST_KEPT, LATENCY_RULE, LATEST_KEPT

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/using/culprit.md").read_text(encoding="utf-8").split())
with (Path(__file__).parent / "culprit_measured.csv").open(encoding="utf-8", newline="") as file:
    MEASURED = list(csv.DictReader(file))
    """What ``benchmarks.culprit`` printed: shares in percent, on machines that were healthy before, and on new ones."""


def test_the_limits_are_those_of_the_code() -> None:
    """As ratio of times, and as the share of the bandwidth that is left."""
    bandwidth, latency = (
        [math.exp(one) for one in (rule.slow, rule.slow_pair)] for rule in (BANDWIDTH_RULE, LATENCY_RULE)
    )
    assert f"at least {bandwidth[0]:.2f} times as long ({100 / bandwidth[0]:.0f} % of the bandwidth)" in PAGE
    assert f"a single pair from {bandwidth[1]:.2f} times on ({100 / bandwidth[1]:.0f} %)" in PAGE
    assert f"from {latency[0]:.1f} and {latency[1]:.1f} times on" in PAGE
    assert f"the first {FIRST_KEPT} and the latest {LATEST_KEPT} good matrices" in PAGE


def test_healthy_machines_are_silent_in_9999_of_10000_sequences() -> None:
    """As many were measured as it takes to say so with 95 % confidence: 0 of 29956 at least."""
    (sequences,) = re.findall(r"none of (\d+) sequences", PAGE)
    assert 1 - 0.05 ** (1 / int(sequences)) <= 1e-4


@pytest.mark.parametrize(("by", "words"), [("part", "of part"), ("machine", "of machine")])
def test_the_right_part_is_named_in_95_of_100_cases(by: str, words: str) -> None:
    """Of every kind and on every sort of machine, known and new; the page has the least, and how often it was wrong."""
    measured = [row for row in MEASURED if row["by"] == by]
    played = [row for row in measured if row["cases"] != "0"]
    right = [float(row["itself"]) + float(row["same_pairs"]) for row in played]

    assert (len(measured), len(played)) == (16, 15)
    assert min(right) >= 95
    assert re.search(rf"at least {min(right):.1f} % (of the cases of|on) each of eight kinds {words}", PAGE)
    assert max(float(row["wrong"]) for row in MEASURED if row["wrong"]) == 3.3
    assert "at most 3.3 % of the cases" in PAGE
    assert "nobody is the right answer, and none was named" in PAGE


@pytest.mark.parametrize("file", ["culprit_nodes.py", "culprit_generator.py"])
def test_the_generator_knows_nothing_of_the_judge(file: str) -> None:
    """It imports the standard library and its own nodes, no more."""
    tree = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not [one for one in modules if one.startswith("commwatch")]
    assert {one for one in modules if one.startswith("analysis")} <= {"analysis.culprit_nodes"}
