"""How often the slow part of a network is named, missed or made up, and what 16,384 nodes take.

docs/engineering/accuracy.md has the figures. The cluster is that of ``cluster_generator``, which knows nothing of the
judge.

Example:
    python -m benchmarks.cluster_verdict --runs 100 --seed 1 --fabrics
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing import Pool
from random import Random
from typing import Any, NamedTuple

from benchmarks.cluster_generator import MIXED, NICS, Cluster, Conditions, Fault, cluster_of, with_faults

from commwatch.cluster.locate import Named, Verdict, locate
from commwatch.cluster.run_file import SCHEMA, Measured, Member, Run
from commwatch.cluster.schedule import MOST_PASSES, NO_LEAF, Pair, first_round, second_round, witness_round


class Setting(NamedTuple):
    """What is played."""

    name: str
    nodes: int = 1024
    faults: int = 6
    left: float = 0.7
    kinds: tuple[tuple[str, float], ...] = tuple(MIXED.items())
    busy: float = 0.0
    conditions: Conditions = Conditions()
    share_of_runs: float = 1.0
    leaf_size: int = 32
    tiers: tuple[tuple[int, float], ...] = ()
    fewer_rails: float = 0.0
    is_told: bool = True
    """Whether the leaves are known."""


HARSH = Conditions(noise=0.03, spikes=0.02, congestion=0.1, spread=0.02, pair_moments=0.003, hot_uplinks=0.1)
"""Healthy NICs differ, whole pairs stand still for a moment, and a tenth of the uplinks is busy with other jobs."""
SETTINGS = (
    Setting("healthy", faults=0),
    Setting("healthy, half busy, 10 % congestion", faults=0, busy=0.5, conditions=Conditions(congestion=0.1)),
    Setting("5 NICs", faults=5, kinds=tuple(NICS.items())),
    Setting("6 mixed"),
    Setting("6 mixed, half busy, 10 % congestion", busy=0.5, conditions=Conditions(congestion=0.1)),
    Setting("healthy, harsh", faults=0, busy=0.5, conditions=HARSH),
    Setting("6 mixed, harsh", busy=0.5, conditions=HARSH),
    Setting("6 mixed, loss 50 %", left=0.5),
    Setting("6 mixed, loss 20 %", left=0.8),
    Setting("256 nodes, 6 mixed", nodes=256),
    Setting("64 nodes, 2 mixed", nodes=64, faults=2),
    Setting("16 nodes, 1 NIC or node", nodes=16, faults=1, kinds=(("nic", 1.0), ("node", 1.0))),
    Setting("16,384 nodes, 20 mixed", nodes=16384, faults=20, share_of_runs=0.02),
)
_ONE = (("nic", 1.0),)
ROUGH = Conditions(spikes=0.01, tails=3.0, pair_moments=0.005, node_moments=0.005, congestion=0.02)
"""Noise has heavy tails, and rails, pairs and nodes stand still for moments."""


def _fabrics() -> Iterator[Setting]:
    """Networks of which the nodes, the spine or the weather are not ideal; each healthy, and with NICs at 70 %."""
    few: dict[str, Any] = {"leaf_size": 64, "is_told": False}
    for weather, conditions in (("", Conditions()), (", rough", ROUGH)):
        for nodes in (3, 4, 8):
            yield Setting(f"{nodes} nodes{weather}, healthy", nodes, 0, conditions=conditions, **few)
            for faults, left in ((1, 0.7), (1, 0.5), (1, 0.05), (2, 0.7), (2, 0.5), (3, 0.7)):
                name = f"{nodes} nodes{weather}, {faults} at {left:.0%}"
                yield Setting(name, nodes, faults, left, _ONE, conditions=conditions, **few)
    for nodes, leaf, pod in ((64, 8, 32), (256, 16, 64), (1024, 32, 128)):
        half = nodes // 2
        kinds: tuple[tuple[str, dict[str, Any]], ...] = (
            ("even", {}),
            ("rough", {"conditions": ROUGH}),
            ("taper 0.8", {"tiers": ((pod, 0.8),)}),
            ("taper 0.8, rough", {"tiers": ((pod, 0.8),), "conditions": ROUGH}),
            ("a quarter with 4 of 8 rails", {"fewer_rails": 0.25}),
            ("a quarter with 4 of 8 rails, rough", {"fewer_rails": 0.25, "conditions": ROUGH}),
            ("islands 0.5 with leaves", {"tiers": ((half, 0.5),)}),
            ("islands 0.5 without leaves", {"tiers": ((half, 0.5),), "is_told": False}),
            ("islands 0.5 without leaves, rough", {"tiers": ((half, 0.5),), "is_told": False, "conditions": ROUGH}),
        )
        for name, others in kinds:
            for faults in (0, 1, 3) if nodes < 256 else (0, 6):
                yield Setting(f"{nodes} nodes, {name}, {faults} NICs", nodes, faults, 0.7, _ONE, leaf_size=leaf,
                              share_of_runs=min(1.0, 64 / nodes), **others)  # fmt: skip
    for faults in (0, 1, 2):
        yield Setting(f"8 nodes, islands 0.5 without leaves, {faults} NICs", 8, faults, 0.7, _ONE, leaf_size=4,
                      tiers=((4, 0.5),), is_told=False)  # fmt: skip
    for nodes, leaf, pod in ((64, 8, 32), (1024, 32, 128)):
        yield Setting(f"{nodes} nodes, taper 0.8, 3 mixed at 50%", nodes, 3, 0.5, leaf_size=leaf, tiers=((pod, 0.8),))


FABRICS = tuple(_fabrics())


def play(cluster: Cluster, seed: str, *, is_told: bool = True) -> tuple[Run, Verdict, int]:
    """Three rounds; the run, the verdict and how many pairs were measured."""
    leaves = [f"leaf{one}" if is_told else NO_LEAF for one in cluster.leaf_of]
    members = tuple(Member(f"node{place}", leaf) for place, leaf in enumerate(leaves))
    first = first_round(leaves, seed, cluster.rails_of)
    second = second_round(leaves, seed, first, cluster.rails_of)
    measured = [*_measured(cluster, 1, first), *_measured(cluster, 2, second)]
    pairs = [*first, *second]
    verdict = locate(Run(SCHEMA, members, tuple(measured)))
    for _ in range(MOST_PASSES):
        met = [frozenset(pair[:2]) for pair in pairs]
        third = witness_round(leaves, seed, verdict.suspects, verdict.doubtful, met, verdict.sides, cluster.rails_of)
        if not third:
            break
        pairs += third
        measured += _measured(cluster, 3, third)
        verdict = locate(Run(SCHEMA, members, tuple(measured)))
    return Run(SCHEMA, members, tuple(measured)), verdict, len(pairs)


def _measured(cluster: Cluster, number: int, pairs: Iterable[Pair]) -> Iterable[Measured]:
    for one in cluster.measure(pair[:2] for pair in pairs):
        if one.failed:
            yield Measured(number, one.first, one.second, one.rail, failed="timeout")
        else:
            yield Measured(number, one.first, one.second, one.rail, one.forward, one.backward, latency=one.latency)


def is_about(named: Named, fault: Fault) -> bool:
    """Whether a name is that of the part at fault: the node (and NIC), or the leaf (and its uplink)."""
    if fault.kind in ("nic", "node", "dead"):
        same = named.kind in ("nic", "node") and named.elements == (f"node{fault.node}",)
    elif fault.kind == "path":  # the only one between two leaves is that of their uplinks
        same = sorted(named.elements) == sorted((f"leaf{fault.leaf}", f"leaf{fault.other_leaf}"))
    else:
        same = named.kind in ("leaf", "uplink") and f"leaf{fault.leaf}" in named.elements
    return same and (fault.kind == "node" or fault.rail in named.rails)


def is_right(named: Named, fault: Fault) -> bool:
    """Whether it is of the right kind and direction too, which is that of the first of two leaves."""
    out, into = fault.out, fault.into
    if len(named.elements) == 2 and named.elements[0] != f"leaf{fault.leaf}":
        out, into = into, out
    direction = "both" if out and into else "out" if out else "in"
    return named.kind == ("nic" if fault.kind == "dead" else fault.kind) and named.direction == direction


def one_run(task: tuple[Setting, int]) -> Counter[str]:
    """What a run gave."""
    setting, seed = task
    random = Random(f"{setting.name} {seed}")  # noqa: S311 - the same cases each time
    cluster = cluster_of(
        setting.nodes, setting.conditions, random, leaf_size=setting.leaf_size, busy=setting.busy, tiers=setting.tiers,
        fewer_rails=setting.fewer_rails,
    )  # fmt: skip
    if setting.faults:
        cluster = with_faults(cluster, setting.faults, setting.left, dict(setting.kinds))
    run, verdict, pairs = play(cluster, str(seed), is_told=setting.is_told)
    faults = [one for one in cluster.faults if one.kind != "path"]  # one way of many: not to be named
    counts = Counter(runs=1, pairs=pairs, faults=len(faults), named=len(verdict.named), open=len(verdict.open))
    for fault in faults:
        found = [one for one in verdict.named if is_about(one, fault)]
        counts["found"] += bool(found)
        counts["right"] += any(is_right(one, fault) for one in found) and len({one.kind for one in found}) == 1
        if not found:
            counts[f"missed {fault.kind}"] += 1
    for one in verdict.named:
        is_true = any(is_about(one, fault) for fault in cluster.faults)
        counts["true"] += is_true
        if not is_true:
            counts[f"made up {one.kind} {one.fault}"] += 1
    counts["right runs"] = counts["found"] == counts["faults"] and counts["true"] == counts["named"]
    turns = Counter(end for turn in {(one.round, one.first, one.second) for one in run.measured} for end in turn[1:])
    counts["turns"] = sum(turns.values())
    counts["members"] = len(run.members)
    counts[f"most turns {max(turns.values()):02}"] = 1
    return counts


def false_alerts(task: int) -> int:
    """Parts that two healthy runs in a row name."""
    names: list[set[tuple[object, ...]]] = []
    for turn in range(2):
        random = Random(f"alert {task} {turn}")  # noqa: S311 - the same cases each time
        cluster = cluster_of(1024, Conditions(congestion=0.1), random, busy=0.5)
        verdict = play(cluster, f"{task} {turn}")[1]
        names.append({(one.kind, one.elements) for one in verdict.named})
    return len(names[0] & names[1])


def large() -> str:
    """Seconds and memory of 16,384 nodes with 8 rails, schedule and verdict of all rounds, on one core."""
    random = Random("large")  # noqa: S311 - the same case each time
    cluster = with_faults(cluster_of(16384, Conditions(congestion=0.1), random), 20, 0.7, MIXED)
    leaves = [f"leaf{one}" for one in cluster.leaf_of]
    members = tuple(Member(f"node{place}", leaf) for place, leaf in enumerate(leaves))
    began = time.process_time()
    first = first_round(leaves, "large")
    second = second_round(leaves, "large", first)
    planned = time.process_time() - began
    measured = (*_measured(cluster, 1, first), *_measured(cluster, 2, second))
    began = time.process_time()
    verdict = locate(Run(SCHEMA, members, measured))
    third = witness_round(
        leaves, "large", verdict.suspects, verdict.doubtful, {frozenset(one[:2]) for one in (*first, *second)}
    )
    judged = time.process_time() - began
    run = Run(SCHEMA, members, (*measured, *_measured(cluster, 3, third)))
    began = time.process_time()
    verdict = locate(run)
    judged += time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"16,384 nodes: planned in {planned:.1f} s, judged twice in {judged:.1f} s of one core, {memory:.0f} MiB at "
        f"most with the generator; {len(verdict.named)} named of 20 faults"
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=100, help="of each setting")
    parser.add_argument("--seed", type=int, default=1, help="other cases; what was improved on some is shown on others")
    parser.add_argument("--alerts", type=int, default=0, help="pairs of healthy runs in a row, for false alerts")
    parser.add_argument("--fabrics", action="store_true", help="networks that are not ideal")
    parser.add_argument("--only", default="", help="settings whose name has this text")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="counts only")
    parser.add_argument("--large", action="store_true", help="only time and memory of 16,384 nodes")
    arguments = parser.parse_args()
    if arguments.large:
        print(large())
        return
    counted = {}
    with Pool(arguments.processes) as pool:
        for setting in FABRICS if arguments.fabrics else SETTINGS:
            if arguments.only in setting.name:
                runs = max(1, round(arguments.runs * setting.share_of_runs))
                tasks = [(setting, 1_000_000 * arguments.seed + one) for one in range(runs)]
                counted[setting.name] = sum(pool.imap_unordered(one_run, tasks), Counter[str]())
                if not arguments.json:
                    print(_row(setting.name, counted[setting.name]), flush=True)
        if arguments.alerts:
            tasks_of_alerts = [1_000_000 * arguments.seed + one for one in range(arguments.alerts)]
            found = sum(pool.imap_unordered(false_alerts, tasks_of_alerts))
            print(f"false alerts in {arguments.alerts} pairs of healthy runs: {found}")
    if arguments.json:
        print(json.dumps(counted))


def _row(name: str, of: Counter[str]) -> str:
    others = ", ".join(f"{key} {value}" for key, value in sorted(of.items()) if key.startswith(("missed", "made up")))
    most = max(key[-2:] for key in of if key.startswith("most turns"))
    return (
        f"| {name} | {of['runs']} | {_percent(of['found'], of['faults'])} | {_percent(of['true'], of['named'])} | "
        f"{_percent(of['right'], of['found'])} | {(of['named'] - of['true']) / of['runs']:.3f} | "
        f"{of['open'] / of['runs']:.2f} | {of['pairs'] / of['runs']:.0f} | "
        f"{_percent(of['right runs'], of['runs'])} | {of['turns'] / of['members']:.2f} to {int(most)} | {others} |"
    )


if __name__ == "__main__":
    main()
