"""Totals of what the logs of jobs say, and the likeliest cause of what is seen within a minute."""

from __future__ import annotations

import msgspec
import pytest

from commwatch.jobs.logs.categories import SIDES
from commwatch.jobs.logs.lines import INCIDENT_SECONDS
from commwatch.jobs.logs.tracker import NcclLogCounts, NcclLogCountsState, silent_gpu
from commwatch.readings import LogErrors

NOW = 1.7e9
ERRORS, INCIDENTS = "commwatch_nccl_log_errors_total", "commwatch_nccl_log_incidents_total"


def errors(category: str, count: int = 1, text: str = "a line", certain: bool = True) -> LogErrors:
    return LogErrors(category, certain, count, "/log/job.log", text)


def test_every_category_begins_with_zero() -> None:
    """So that the first error of a kind is an increase."""
    block = NcclLogCounts(NcclLogCountsState()).block(5.0)

    assert [block.get(metric, category) for metric in (ERRORS, INCIDENTS) for category in SIDES] == [0] * 2 * len(SIDES)


def test_lines_are_counted_at_once_and_the_incident_when_it_is_over() -> None:
    """Only then its likeliest cause is known."""
    counts = NcclLogCounts(NcclLogCountsState())
    assert counts.take([errors("timeout", 8)], NOW) == []
    assert counts.take([errors("ib_retry", 2, "the cause"), errors("timeout")], NOW + 30) == []
    assert counts.block(0.0).get(ERRORS, "timeout") == 9
    assert counts.block(0.0).get(INCIDENTS, "ib_retry") == 0

    (over,) = counts.take([], NOW + INCIDENT_SECONDS)
    assert (over.culprit, over.first.text, over.began) == ("ib_retry", "the cause", NOW)
    assert [(one.category, one.count) for one in over.errors] == [("timeout", 9), ("ib_retry", 2)]
    assert counts.block(0.0).get(INCIDENTS, "ib_retry") == 1
    assert counts.block(0.0).get(INCIDENTS, "timeout") == 0
    assert counts.take([], NOW + 300) == []


def test_what_comes_a_minute_later_is_another_incident() -> None:
    """It ends the first one and begins its own."""
    counts = NcclLogCounts(NcclLogCountsState())
    counts.take([errors("cuda")], NOW)
    (first,) = counts.take([errors("socket")], NOW + INCIDENT_SECONDS)
    (second,) = counts.take([], NOW + 2 * INCIDENT_SECONDS)

    assert (first.culprit, second.culprit) == ("cuda", "socket")


def test_a_status_is_told_by_the_line_that_names_the_cause() -> None:
    """Of two lines of one category the first stands for it."""
    counts = NcclLogCounts(NcclLogCountsState())
    counts.take([errors("cuda", text="status", certain=False), errors("socket", text="cause")], NOW)
    (over,) = counts.take([], NOW + INCIDENT_SECONDS)

    assert (over.culprit, over.first.text) == ("socket", "cause")


def test_a_restart_forgets_neither_totals_nor_an_open_incident() -> None:
    """All of it goes into the state file and comes back."""
    counts = NcclLogCounts(NcclLogCountsState())
    counts.take([errors("cuda", 3)], NOW)
    kept = msgspec.json.decode(msgspec.json.encode(counts.state), type=NcclLogCountsState)
    again = NcclLogCounts(kept)

    assert again.block(0.0).get(ERRORS, "cuda") == 3
    (over,) = again.take([], NOW + 3600)
    assert over.culprit == "cuda"


def test_a_clock_that_is_set_back_keeps_no_incident_open() -> None:
    """It is over at the next run."""
    counts = NcclLogCounts(NcclLogCountsState())
    counts.take([errors("cuda")], NOW)

    assert len(counts.take([], NOW - 3600)) == 1


def test_a_category_that_is_not_of_the_list_is_other() -> None:
    """Whatever a state file of another version holds, the labels stay bounded."""
    counts = NcclLogCounts(NcclLogCountsState(errors={"strange": 4}))
    counts.take([errors("unheard_of")], NOW)

    assert counts.block(0.0).get(ERRORS, "other") == 1
    assert len(counts.block(0.0).values) == 2 * len(SIDES)


def test_lines_are_counted_by_the_adapter_that_they_name_where_this_node_has_it() -> None:
    """From 0 on; a log can name any, and one that is gone is forgotten, but not while none is known, as at a start."""
    counts = NcclLogCounts(NcclLogCountsState())

    def named(*devices: str) -> dict[str, int]:
        found = [LogErrors("ib_retry", True, 2, "/log/job.log", "a line", hca) for hca in ("mlx5_1", "mlx5_9", "")]
        counts.take(found, NOW, devices)
        return counts.state.devices

    assert named() == {}
    assert named("mlx5_1", "mlx5_0") == {"mlx5_0": 0, "mlx5_1": 2}
    block = counts.device_block(5.0)
    assert [block.get("commwatch_nccl_log_device_errors_total", one) for one in ("mlx5_0", "mlx5_1")] == [0, 2]
    assert named() == {"mlx5_0": 0, "mlx5_1": 4}
    assert named("mlx5_0") == {"mlx5_0": 0}
    assert counts.device_block(5.0).get("commwatch_nccl_log_device_errors_total", "mlx5_1") is None


@pytest.mark.parametrize(
    ("waiting", "gpus", "silent"),
    [
        ({0, 1, 3}, 4, 2),
        ({8, 9, 10, 11, 12, 13, 14}, 8, 7),
        ({0, 1, 2, 3}, 4, None),
        ({0, 1}, 4, None),
        ({1, 2, 4}, 4, None),
        ({0}, 2, None),
        (set(), 0, None),
    ],
)
def test_the_one_rank_that_did_not_complain_is_that_of_a_gpu(waiting: set[int], gpus: int, silent: int | None) -> None:
    """Ranks of a node follow each other; not where all complain, several are silent, or they are of two nodes."""
    assert silent_gpu(waiting, gpus) == silent


def test_a_silent_rank_counts_when_its_incident_is_over() -> None:
    """From 0 on for each GPU, also for one that is gone meanwhile."""
    counts = NcclLogCounts(NcclLogCountsState())
    counts.take([LogErrors("timeout", True, 1, "/log/job.log", "a line", rank=rank) for rank in (0, 1, 3)], NOW, (), 4)
    assert counts.state.silent == [0, 0, 0, 0]

    counts.take([], NOW + INCIDENT_SECONDS, (), 3)
    block = counts.silent_block(5.0)
    assert [block.get("commwatch_nccl_log_silent_rank_incidents_total", gpu) for gpu in "0123"] == [0, 0, 1, 0]
