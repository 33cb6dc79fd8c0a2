"""What docs/using/culprit.md says holds: limits of the code, tables that meet the goals, a generator apart."""

from __future__ import annotations

import ast
import itertools
import math
import re
from pathlib import Path

import pytest

from commwatch.probes.results.culprit import BANDWIDTH_RULE, FIRST_KEPT, LATENCY_RULE, LATEST_KEPT

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/using/culprit.md").read_text(encoding="utf-8").split())
LINES = (ROOT / "docs/using/culprit.md").read_text(encoding="utf-8").splitlines()


def rows(first: str) -> list[list[str]]:
    """Cells of the rows of the table whose first column has this heading."""
    begin = next(place for place, line in enumerate(LINES) if line.startswith(f"| {first} |"))
    table = itertools.takewhile(lambda line: line.startswith("|"), LINES[begin + 2 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


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


@pytest.mark.parametrize("first", ["injected", "machines"])
def test_the_right_part_is_named_in_95_of_100_cases(first: str) -> None:
    """Of every kind and on every sort of machine, known and new; nobody where nothing can be seen."""
    measured = [cells[place : place + 3] for _, *cells in rows(first) for place in (0, 3)]
    assert len(measured) == 16
    for cases, itself, same_pairs in measured:
        assert cases == "0" or float(itself) + float(same_pairs) >= 95
    assert "nobody is the right answer, and none was named" in PAGE


@pytest.mark.parametrize("file", ["culprit_nodes.py", "culprit_generator.py"])
def test_the_generator_knows_nothing_of_the_judge(file: str) -> None:
    """It imports the standard library and its own nodes, no more."""
    tree = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8"))
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not [one for one in modules if one.startswith("commwatch")]
    assert {one for one in modules if one.startswith("analysis")} <= {"analysis.culprit_nodes"}
