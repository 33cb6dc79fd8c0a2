"""How often the culprit is named, missed or made up, over generated machines: the table of docs/using/culprit.md.

It needs a pool of processes and some minutes; counts, not times, are what it measures.

Example:
    python -m benchmarks.culprit --healthy 30000 --faults 40
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from analysis.culprit_cases import (
    Scene,
    judged,
    judged_one_way,
    judged_pair,
    named_first,
    suspects_in_health,
    suspects_with,
)
from analysis.culprit_generator import fault_of, one_way_fault_of, slow_pair, two_faults, unrelated_cells
from analysis.culprit_nodes import NODES, Node

KINDS = ("gpu", "link_group", "pcie_link", "pcie_switch", "socket_link", "numa_node", "nic", "node")
SCENES: tuple[Scene, ...] = ("known", "new")

SingleCounts: TypeAlias = Counter[tuple[str, Scene, float, str, str, str]]
"""By family, scene, share left, kind injected, kind named first and verdict."""


def healthy(task: tuple[str, int, int]) -> tuple[str, int, int]:
    """Family, sequences of six matrices, and how many of them named anybody."""
    family, sequences, seed = task
    random = Random(f"{family} healthy {seed}")  # noqa: S311 - the same cases each time
    named = sum(bool(suspects_in_health(random.choice(NODES[family]), random)) for _ in range(sequences))
    return family, sequences, named


def single(task: tuple[str, Scene, float, int, int]) -> SingleCounts:
    """The verdicts on every part of every node of a family."""
    family, scene, share, cases, seed = task
    random = Random(f"{family} {scene} {share} {seed}")  # noqa: S311 - the same cases each time
    found: SingleCounts = Counter()
    for node in NODES[family]:
        for part in node.parts:
            for _ in range(cases):
                suspects = suspects_with(node, random, [fault_of(node, part, share, random)], scene)
                named = suspects[0].kind if suspects else "nobody"
                verdict: str = judged(node, part, suspects, scene)
                if verdict == "right":
                    verdict = "itself" if named_first(suspects) == part else "on the same pairs"
                found[family, scene, share, part.kind, named, verdict] += 1
    return found


def several(task: tuple[str, str, int, int]) -> Counter[tuple[str, str, str]]:
    """Counts by family, what is wrong, and verdict: two parts at once, one direction, or cells without connection."""
    family, what, cases, seed = task
    random = Random(f"{family} {what} {seed}")  # noqa: S311 - the same cases each time
    found: Counter[tuple[str, str, str]] = Counter()
    for _ in range(cases):
        found[family, what, _CASES[what](random.choice(NODES[family]), random)] += 1
    return found


def _two(node: Node, random: Random) -> str:
    parts, faults = two_faults(node, 0.7, random)
    suspects = suspects_with(node, random, faults, "known")
    if not suspects:
        return "nobody"
    right = sum(any(judged(node, part, [one], "known") == "right" for one in suspects) for part in parts)
    if right == len(parts):
        return "both" if len(suspects) == len(parts) else "both and more"
    if frozenset().union(*(one.cells for one in suspects)) == faults[0].cells | faults[1].cells:
        return "parts that together slow the same cells"
    return "one of them" if right else "others"


def _one_way(node: Node, random: Random) -> str:
    fault = one_way_fault_of(node, 0.7, random)
    return judged_one_way(node, fault, suspects_with(node, random, [fault], "known"))


def _pair(node: Node, random: Random, scene: Scene) -> str:
    ends, fault = slow_pair(node, 0.7, random)
    return judged_pair(node, ends, suspects_with(node, random, [fault], scene), scene)


def _unrelated(node: Node, random: Random) -> str:
    fault = unrelated_cells(node, 0.7, random)
    suspects = suspects_with(node, random, [fault], "known")
    if not suspects:
        return "nobody"
    single_pairs = all(len({frozenset(cell) for cell in one.cells}) == 1 for one in suspects)
    return "only the pairs" if single_pairs else "a part of several pairs"


_CASES: dict[str, Callable[[Node, Random], str]] = {
    "two parts at once": _two,
    "one direction of a part": _one_way,
    "two cells without connection": _unrelated,
    "one pair, known machine": partial(_pair, scene="known"),
    "one pair, new machine": partial(_pair, scene="new"),
}


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + " --- |" * len(head), *lines[1:], ""])


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _rates(found: SingleCounts) -> str:
    rows = []
    for family in NODES:
        for scene in SCENES:
            for share in sorted({key[2] for key in found}, reverse=True):
                verdicts: Counter[str] = Counter()
                for key, count in found.items():
                    if key[:3] == (family, scene, share):
                        verdicts[key[5]] += count
                rows.append((family, scene, f"{100 * (1 - share):.0f} %", *_shares(verdicts)))
    return _table(("machines", "machine is", "slow-down", *_SHARES), rows)


_SHARES = ("cases", "itself", "on the same pairs", "nobody", "wrong", "not visible", "of these somebody named")


def _shares(verdicts: Counter[str]) -> tuple[object, ...]:
    named_in_vain = verdicts["hidden, somebody named"]
    hidden = verdicts["hidden"] + named_in_vain
    cases = sum(verdicts.values()) - hidden
    answers = (_percent(verdicts[one], cases) for one in ("itself", "on the same pairs", "nobody", "wrong"))
    return (cases, *answers, hidden, named_in_vain)


def _confusion(found: SingleCounts, scene: Scene) -> str:
    """Injected against named first at 30 %, over all machines."""
    named_kinds = (*KINDS, "pair")
    rows = []
    for kind in KINDS:
        named: Counter[str] = Counter()
        verdicts: Counter[str] = Counter()
        for (_, when, share, injected, first, verdict), count in found.items():
            if (when, share, injected) == (scene, 0.7, kind):
                verdicts[verdict] += count
                if not verdict.startswith("hidden"):
                    named[first] += count
        rows.append((kind, *(named[one] or "" for one in named_kinds), *_shares(verdicts)))
    return _table(("injected", *named_kinds, *_SHARES), rows)


def _upper_bound(named: int, sequences: int) -> float:
    """Of the share of sequences that name somebody, with 95 % confidence (Clopper and Pearson, one-sided)."""
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        likelihood = sum(math.comb(sequences, n) * share**n * (1 - share) ** (sequences - n) for n in range(named + 1))
        low, high = (share, high) if likelihood > 0.05 else (low, share)
    return high


Healthy: TypeAlias = Sequence[tuple[str, int, int]]
SeveralCounts: TypeAlias = Counter[tuple[str, str, str]]


def _measured(
    healthy_sequences: int, faults: int, first_seed: int, processes: int
) -> tuple[Healthy, SingleCounts, SeveralCounts]:
    """All counts; the work is cut small, since machines of 16 GPUs take the longest."""
    chunks = range(first_seed, first_seed + 10)
    sequences = max(1, healthy_sequences // (len(NODES) * len(chunks)))
    with multiprocessing.Pool(processes) as pool:
        sound = pool.map(healthy, [(one, sequences, seed) for one in NODES for seed in chunks], 1)
        singles = [
            (family, scene, share, max(1, (faults if share == 0.7 else faults // 4) // 5), seed)
            for family in NODES
            for scene in SCENES
            for share in (0.8, 0.7, 0.5)
            for seed in chunks[:5]
            if faults
        ]
        plurals = [
            (family, what, 4 * faults, first_seed)
            for family in NODES
            for what in _CASES
            if family != "two GPUs" or what.startswith("one pair")
        ]
        return sound, sum(pool.map(single, singles, 1), Counter()), sum(pool.map(several, plurals, 1), Counter())


def _report(sound: Healthy, singles: SingleCounts, plural: SeveralCounts) -> str:
    """The tables, in Markdown."""
    named, total = sum(one[2] for one in sound), sum(one[1] for one in sound)
    bound = 100 * _upper_bound(named, total)
    families = [
        (family, sum(n for one, n, _ in sound if one == family), sum(n for one, _, n in sound if one == family))
        for family in NODES
    ]
    answers: Counter[tuple[str, str]] = Counter()
    for (_, what, answer), count in plural.items():
        answers[what, answer] += count
    return "\n".join(
        [
            f"Healthy sequences of six matrices: {named} of {total} named anybody; with 95 % confidence at most "
            f"{bound:.4f} % do.\n",
            _table(("machines", "healthy sequences", "with a suspect"), families),
            *(
                f"Single part at 30 %, machine is {scene}: injected against named first, over all machines\n\n"
                + _confusion(singles, scene)
                for scene in SCENES
            ),
            _rates(singles),
            _table(("what is slow", "answer", "cases"), [(*key, answers[key]) for key in sorted(answers)]),
        ]
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--healthy", type=int, default=30_000, help="sequences of six matrices in all")
    parser.add_argument("--faults", type=int, default=40, help="cases for each part of each machine at 30 %%; 0: none")
    parser.add_argument("--seed", type=int, default=0, help="other cases; what was improved on some is shown on others")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--json", action="store_true", help="counts only")
    arguments = parser.parse_args()
    began = time.monotonic()
    sound, singles, plural = _measured(arguments.healthy, arguments.faults, arguments.seed, arguments.processes)
    if arguments.json:
        counts = {
            "healthy": sound,
            "single": [[*key, count] for key, count in singles.items()],
            "several": [[*key, count] for key, count in plural.items()],
        }
        print(json.dumps(counts))
        return
    print(_report(sound, singles, plural))
    print(f"{time.monotonic() - began:.0f} s with {arguments.processes} processes.")


if __name__ == "__main__":
    main()
