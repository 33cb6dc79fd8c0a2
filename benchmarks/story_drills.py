"""Two faults of the catalogue of drills at once, drawn at random, through a real Prometheus and Alertmanager.

In the fast form. Both must fire an alert of their own. Whether both were notified is reported beside it: a page of a
node hushes its tickets, by design. What else fires is reported and not judged: two faults have signs in common that no
drill of one fault lists.

Example: python -m benchmarks.story_drills --count 40 --seed 1
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

sys.path.append(str(Path(__file__).parents[1] / "daemon"))
from commwatch_rehearsal.drill.catalogue import load_drills
from commwatch_rehearsal.drill.course import Outcome
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.ending import heeded_signals
from commwatch_rehearsal.drill.pace import FAST
from commwatch_rehearsal.drill.rehearsal import Rehearsal
from commwatch_rehearsal.drill.stage import Given, Stage

FAMILIES = ("NVLink", "PCIe", "GPU", "Network", "RDMA", "Host", "Probes")

HIDING = frozenset(
    {
        "gpu_lost",
        "gpu_reset_required",
        "gpu_calls_fail",
        "driver_hang",
        "driver_unusable",
        "gpu_missing",
        "gpu_not_started",
    }
)
"""Faults by which other parts are not read any more: nothing can be told of them."""


def can_be_told(drill: Drill) -> bool:
    """Whether it is one fault on one node that pages, and that the fast form can show."""
    return (
        drill.family in FAMILIES and drill.fast and drill.nodes == 1 and bool(drill.alerts) and len(drill.faults) == 1
        and not HIDING.intersection(one["fault"] for one in drill.faults)
        and not (drill.first_day or drill.stopped or drill.under or drill.probes_from)
    )  # fmt: skip


def stories(count: int, seed: int) -> Iterator[Drill]:
    """So many pairs of faults on one node; the same seed gives the same ones."""
    drawn = random.Random(seed)  # noqa: S311 - stories, no secrets
    drills = [drill for drill in load_drills().values() if can_be_told(drill)]
    seen: set[frozenset[str]] = set()
    while len(seen) < count:
        one = drawn.choice(drills)
        others = [
            other for other in drills
            if other.preset == one.preset and not set(other.alerts) & {*one.alerts, *one.also}
            and not set(one.alerts) & set(other.also) and not (one.probes and other.probes)
        ]  # fmt: skip
        if not others or frozenset({one.name, (other := drawn.choice(others)).name}) in seen:
            continue
        seen.add(frozenset({one.name, other.name}))
        yield msgspec.structs.replace(
            one,
            name=f"story_{len(seen)}",
            faults=(*one.faults, *other.faults),
            alerts=(*one.alerts, *other.alerts),
            codes=(),
            also=tuple(dict.fromkeys((*one.also, *other.also))),
            within=max(one.limit, other.limit),
            lasts=max(one.lasts, other.lasts),
            returns=max(one.returns, other.returns),
            probes={**one.probes, **other.probes},
        )


def is_told(outcome: Outcome) -> bool:
    """Whether the own alerts of both faults fired."""
    return outcome.seconds_to_firing is not None


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="stories (default 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default 1)")
    parser.add_argument("--nodes", type=int, default=4, help="nodes at once (default 4)")
    parser.add_argument("--within", type=float, default=3600.0, help="seconds for all of it (default 3600)")
    given = parser.parse_args()
    drills = list(stories(given.count, given.seed))
    begun = time.monotonic()
    with heeded_signals():
        stage = Stage(FAST, Given("", "", "", ""))
        try:
            outcomes = Rehearsal(
                drills, stage, nodes=given.nodes, seconds=given.within, say=lambda line: print(line, file=sys.stderr)
            ).run()
        finally:
            stage.close()
    notified = 0
    for outcome in outcomes:
        hushed = sorted(set(outcome.expected) - set(outcome.received))
        notified += not hushed
        verdict = "both fired" if is_told(outcome) else "NOT BOTH FIRED"
        not_notified = f"; not notified: {', '.join(hushed)}" if hushed else ""
        more = f"; beside: {', '.join(outcome.unexpected)}" if outcome.unexpected else ""
        print(f"{outcome.name} ({outcome.preset}: {'; '.join(outcome.faults)}): {verdict}{not_notified}{more}")
    seconds = time.monotonic() - begun
    print(
        f"{sum(map(is_told, outcomes))} of {len(outcomes)} fired both, {notified} were notified of both, in "
        f"{seconds:.0f} s, seed {given.seed}"
    )


if __name__ == "__main__":
    main()
