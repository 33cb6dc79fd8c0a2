"""How often the culprit is named, missed or made up, over generated machines: the confusion table of docs/culprit.md.

It needs a pool of processes and some minutes; counts, not times, are what it measures.

Example:
    python -m benchmarks.culprit --healthy 30000 --faults 40
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from analysis.culprit_cases import (
    Scene,
    Verdict,
    judged,
    judged_one_way,
    suspects_in_health,
    suspects_with,
)
from analysis.culprit_generator import (
    NODES,
    Node,
    fault_of,
    one_way_fault_of,
    two_faults,
    unrelated_cells,
)

KINDS = ("gpu", "link_group", "pcie_link", "pcie_switch", "socket_link", "numa_node", "node")
SCENES: tuple[Scene, ...] = ("known", "new")


def healthy(task: tuple[str, int, int]) -> tuple[str, int, int]:
    """Family, sequences of six matrices, and how many of them named anybody."""
    family, sequences, seed = task
    random = Random(f"{family} healthy {seed}")  # noqa: S311 - the same cases each time
    named = sum(bool(suspects_in_health(random.choice(NODES[family]), random)) for _ in range(sequences))
    return family, sequences, named


def single(task: tuple[str, Scene, float, int, int]) -> Counter[tuple[str, Scene, float, str, str, str]]:
    """Counts by family, scene, share left, kind injected, kind named first and verdict; every part of every node."""
    family, scene, share, cases, seed = task
    random = Random(f"{family} {scene} {share} {seed}")  # noqa: S311 - the same cases each time
    found: Counter[tuple[str, Scene, float, str, str, str]] = Counter()
    for node in NODES[family]:
        for part in node.parts:
            for _ in range(cases):
                suspects = suspects_with(node, random, [fault_of(node, part, share, random)], scene)
                named = suspects[0].kind if suspects else "nobody"
                found[family, scene, share, part.kind, named, judged(node, part, suspects, scene)] += 1
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
    verdicts = {judged(node, part, [one], "known") for part in parts for one in suspects}
    right = sum(any(judged(node, part, [one], "known") == "right" for one in suspects) for part in parts)
    if right == len(parts):
        return "both" if len(suspects) == len(parts) else "both and more"
    return ("nobody" if not verdicts else "others") if not right else "one of them"


def _one_way(node: Node, random: Random) -> str:
    fault = one_way_fault_of(node, 0.7, random)
    return judged_one_way(node, fault, suspects_with(node, random, [fault], "known"))


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
}


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + " --- |" * len(head), *lines[1:], ""])


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _rates(found: Counter[tuple[str, Scene, float, str, str, str]]) -> str:
    rows = []
    for family in NODES:
        for scene in SCENES:
            for share in sorted({key[2] for key in found}, reverse=True):
                verdicts: Counter[Verdict | str] = Counter()
                for key, count in found.items():
                    if key[:3] == (family, scene, share):
                        verdicts[key[5]] += count
                hidden = verdicts["hidden"] + verdicts["hidden, somebody named"]
                cases = sum(verdicts.values()) - hidden
                rows.append((family, scene, f"{100 * (1 - share):.0f} %", cases, _percent(verdicts["right"], cases),
                             _percent(verdicts["nobody"], cases), _percent(verdicts["wrong"], cases),
                             f"{verdicts['hidden, somebody named']} of {hidden}"))  # fmt: skip
    return _table(("machines", "machine is", "slow-down", "cases", "right", "nobody", "wrong", "hidden: named"), rows)


def _confusion(found: Counter[tuple[str, Scene, float, str, str, str]], scene: Scene) -> str:
    names = (*KINDS, "pair", "nobody")
    rows = []
    for family in NODES:
        for kind in KINDS:
            counts = dict.fromkeys(names, 0)
            right = 0
            for (one, when, share, injected, named, verdict), count in found.items():
                if (one, when, share, injected) == (family, scene, 0.7, kind) and not verdict.startswith("hidden"):
                    counts[named] += count
                    right += count * (verdict == "right")
            if cases := sum(counts.values()):
                rows.append((family, kind, *(counts[name] or "" for name in names), _percent(right, cases)))
    return _table(("machines", "injected", *names, "right"), rows)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--healthy", type=int, default=30_000, help="sequences of six matrices in all")
    parser.add_argument("--faults", type=int, default=40, help="cases for each part of each machine at 30 %%")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--json", action="store_true", help="counts only")
    arguments = parser.parse_args()
    began = time.monotonic()
    chunks = 10
    sequences = max(1, arguments.healthy // (len(NODES) * chunks))
    others = max(1, arguments.faults // 4)
    with multiprocessing.Pool(arguments.processes) as pool:
        sound = pool.map(healthy, [(one, sequences, seed) for one in NODES for seed in range(chunks)], 1)
        tasks = [
            (family, scene, share, max(1, (arguments.faults if share == 0.7 else others) // 5), seed)
            for family in NODES for scene in SCENES for share in (0.8, 0.7, 0.5) for seed in range(5)
        ]  # fmt: skip
        singles = sum(pool.map(single, tasks, 1), Counter())
        plural = sum(pool.map(several, [(one, what, 10 * others, 0) for one in NODES for what in _CASES], 1), Counter())
    if arguments.json:
        print(json.dumps({"healthy": sound, "single": [[*key, count] for key, count in singles.items()],
                          "several": [[*key, count] for key, count in plural.items()]}))  # fmt: skip
        return
    named, total = sum(one[2] for one in sound), sum(one[1] for one in sound)
    print(f"Healthy sequences of six matrices: {named} of {total} named anybody.\n")
    rows = [(family, sum(n for one, n, _ in sound if one == family), sum(n for one, _, n in sound if one == family))
            for family in NODES]  # fmt: skip
    print(_table(("machines", "healthy sequences", "with a suspect"), rows))
    print(_rates(singles))
    for scene in SCENES:
        print(f"Single part at 30 %, machine is {scene}: injected against named first\n")
        print(_confusion(singles, scene))
    rows_several = []
    for family, what, verdict in sorted(plural):
        cases = sum(count for key, count in plural.items() if key[:2] == (family, what))
        rows_several.append((what, family, verdict, plural[family, what, verdict], cases))
    print(_table(("what is slow", "machines", "answer", "count", "of"), sorted(rows_several)))
    print(f"{time.monotonic() - began:.0f} s with {arguments.processes} processes.")


if __name__ == "__main__":
    main()
