"""How evenly the ranks of a probe keep pace, as its series say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commwatch_exporters.snapshot import Value
from probes.recorded import Probe
from probes.results import MIB, plan_of, step
from support.examples import examples
from support.passes import in_one_pass


def balance(seconds: dict[int, float]) -> tuple[Value, int | None]:
    """Ratio and slowest rank of a call over some of eight ranks, by how long it took on each."""
    probe = Probe(plan_of(ranks=8, steps=(step("all_reduce", "bandwidth", MIB, *seconds),)))
    probe.steps(tuple(seconds.values()))
    found = probe.series()
    slowest = [int(key[1]) for key in found if key[0] == "slowest_rank_info"]
    return found["rank_balance_ratio",], slowest[0] if slowest else None


@in_one_pass(
    "seconds, expected",
    [
        ({0: 1.0, 1: 2.0, 2: 4.0}, (0.25, 2)),
        ({1: 2.0, 3: 1.0}, (0.5, 1)),
        ({0: 2.0, 1: 1.0, 2: 2.0}, (0.5, 0)),
        ({0: 1.0, 1: 1.0}, (1.0, None)),
    ],
)
def test_the_fastest_over_the_slowest(seconds: dict[int, float], expected: tuple[float, int | None]) -> None:
    """The slowest rank is named by its own number, nobody where all are equal."""
    assert balance(seconds) == expected


@examples(50)
@given(st.lists(st.floats(min_value=1e-6, max_value=10.0), min_size=2, max_size=8), st.floats(1.0, 100.0))
def test_the_slowest_rank_made_slower_never_improves_the_balance(seconds: list[float], by: float) -> None:
    """The ratio is above 0, at most 1, and falls when the rank behind falls further behind; it stays the one named."""
    behind = seconds.index(max(seconds))
    before, slowest = balance(dict(enumerate(seconds)))
    after, still = balance({rank: one * by if rank == behind else one for rank, one in enumerate(seconds)})

    assert before is not None
    assert after is not None
    assert 0 < after <= before <= 1
    assert slowest is None or still == slowest
