"""Differences between the ranks of one job."""

from __future__ import annotations

from dataclasses import replace

from analysis.nccl_settings.cases import HGX, KNOWN, process, rank
from commwatch.jobs.settings.facts import ProcessSettings
from commwatch.jobs.settings.judge import judge_settings


def differing(*ranks: ProcessSettings) -> list[tuple[str, str, tuple[int, ...]]]:
    return [
        (one.variable, one.severity, one.pids)
        for one in judge_settings(ranks, HGX, KNOWN)
        if one.code == "ranks_differ"
    ]


def test_a_setting_with_different_values_is_harmful_on_each_rank() -> None:
    """One remark, which does not tell the values."""
    ranks = (rank(0, {"NCCL_IB_TC": "106"}), rank(1, {"NCCL_IB_TC": "106"}), rank(2, {"NCCL_IB_TC": "0"}))

    assert differing(*ranks) == [("NCCL_IB_TC", "harmful", (100, 101, 102))]


def test_a_setting_that_some_ranks_lack_is_named_where_it_is() -> None:
    """With how many lack it."""
    remarks = judge_settings([rank(0, {"NCCL_NVLS_ENABLE": "1"}), rank(1, {})], HGX, KNOWN)

    (remark,) = [one for one in remarks if one.code == "ranks_differ"]
    assert (remark.pids, remark.words) == ((100,), "1 of 2 ranks do not have it.")


def test_equal_ranks_have_no_difference() -> None:
    """However many there are."""
    assert differing(*(rank(number, {"NCCL_IB_TC": "106"}) for number in range(8))) == []


def test_what_belongs_to_a_rank_may_differ() -> None:
    """Its log file and its GPUs; its messages too."""
    ranks = [
        rank(
            number,
            {"NCCL_DEBUG_FILE": f"/log.{number}", "CUDA_VISIBLE_DEVICES": str(number), "NCCL_HOSTID": str(number)},
        )
        for number in range(2)
    ]

    assert differing(*ranks) == []
    assert differing(rank(0, {"NCCL_DEBUG": "INFO"}), rank(1, {"NCCL_DEBUG": "WARN"})) == []


def test_adapters_by_rank_are_suspicious_only() -> None:
    """Some launchers give each rank the adapter beside its GPU."""
    ranks = (rank(0, {"NCCL_IB_HCA": "=mlx5_0"}), rank(1, {"NCCL_IB_HCA": "=mlx5_1"}))

    assert {severity for _, severity, _ in differing(*ranks)} == {"suspicious"}


def test_different_jobs_are_not_compared() -> None:
    """Nor are processes without a job, nor the helpers of one rank."""
    one, other = rank(0, {"NCCL_IB_TC": "1"}), rank(1, {"NCCL_IB_TC": "2"})

    assert differing(one, replace(other, job="b")) == []
    assert differing(one, replace(other, job="")) == []
    assert differing(one, replace(other, rank="0")) == []
    assert differing(process({"NCCL_IB_TC": "1"}), process({"NCCL_IB_TC": "2"})) == []


def test_abstract_sockets_do_not_cross_network_namespaces() -> None:
    """Ranks in containers of their own fail with them; 0 is the remedy."""

    def codes(value: str, *namespaces: str) -> set[str]:
        ranks = [
            rank(number, {"NCCL_IPC_USE_ABSTRACT_SOCKET": value}, network_namespace=name)
            for number, name in enumerate(namespaces)
        ]
        return {one.code for one in judge_settings(ranks, HGX, KNOWN)}

    assert codes("1", "net:[1]", "net:[2]") == {"namespaces_differ"}
    assert codes("0", "net:[1]", "net:[2]") == set()
    assert codes("1", "net:[1]", "net:[1]") == set()
    assert codes("1", "net:[1]", "") == set()
