"""Where a member stands, from the variables of each launcher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.cluster.environment import BrokenRun, Own, Place, hostlist, partners, place, run_key
from support.passes import in_one_pass

SLURM = {"SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "3", "SLURM_STEP_NODELIST": "gpu[01-02,07]"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "COMMWATCH_CLUSTER_SIZE": "2", "HOSTNAME": "check-1"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "gpu01", "MASTER_PORT": "29400", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
MPIRUN = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
HERE = Own(names=("gpu02", "gpu02.site", "10.0.0.2"), members=("gpu01", "gpu02"))


@in_one_pass(
    "variables, own, expected",
    [
        (SLURM, Own(), Place("slurm", 2, 3, "gpu01", 29500, ("gpu01", "gpu02", "gpu07"))),
        (
            KUBERNETES, Own(names=("check-1", "check-1.svc.ns.svc.cluster.local", "10.1.0.3")),
            Place("kubernetes", 1, 2, "check-0.svc.ns.svc.cluster.local", 29500,
                  ("check-0.svc.ns.svc.cluster.local", "check-1.svc.ns.svc.cluster.local")),
        ),
        (TORCHRUN, Own(), Place("torchrun", 1, 4, "gpu01", 29400, taken=True)),
        (SLURM | TORCHRUN, Own(), Place("torchrun", 1, 4, "gpu01", 29400, taken=True)),
        (MPIRUN, Own(), Place("mpirun", 0, 2, "10.0.0.1", 29500)),
        (SLURM | MPIRUN, Own(), Place("mpirun", 0, 2, "10.0.0.1", 29500)),
        (SLURM | {"PMIX_RANK": "2"}, Own(), Place("slurm", 2, 3, "gpu01", 29500,
                                                                    ("gpu01", "gpu02", "gpu07"))),
        ({}, HERE, Place("members", 1, 2, "gpu01", 29500, ("gpu01", "gpu02"))),
        (SLURM, Own(host="10.9.9.9", port=4000), Place("slurm", 2, 3, "10.9.9.9", 4000,
                                                                          ("gpu01", "gpu02", "gpu07"))),
    ],
)  # fmt: skip
def test_each_launcher_says_rank_size_and_where_to_meet(variables: dict[str, str], own: Own, expected: Place) -> None:
    """The innermost launcher counts."""
    assert place(variables, own) == expected


@in_one_pass(
    "variables, own, words",
    [
        ({}, Own(), "no launcher is seen"),
        (SLURM, Own(engine="pbs"), "unknown engine 'pbs'"),
        ({}, Own(members=("a", "b"), names=("c",)), "none of the members is this node"),
        ({}, Own(members=("a", "rm -rf"), names=("a",)), "no host name"),
        (SLURM | {"SLURM_NTASKS": "24"}, Own(), "--ntasks-per-node=1"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "8"}, Own(), "--nproc-per-node=1"),
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, Own(), "ppr:1:node"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, Own(), "-x MASTER_ADDR"),
        (TORCHRUN | {"RANK": "-1"}, Own(), "RANK='-1'"),
        (TORCHRUN | {"RANK": "4"}, Own(), "rank 4 of 4"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, Own(), "port 99999"),
        ({"JOB_COMPLETION_INDEX": "0"}, Own(), "COMMWATCH_CLUSTER_SIZE"),
        (TORCHRUN | {"RANK": "1", "WORLD_SIZE": "2000"}, Own(), "block by block"),
        (SLURM | {"SLURM_STEP_NODELIST": "gpu[1-"}, Own(), "no list of nodes"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line_and_exit_code_5(variables: dict[str, str], own: Own, words: str) -> None:
    """It says what is wrong and how to start it."""
    with pytest.raises(BrokenRun) as raised:
        place(variables, own)

    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 5


def test_a_run_needs_a_key_that_keeps_strangers_out() -> None:
    """By the environment, or by a file, which wins."""
    assert run_key({"COMMWATCH_CLUSTER_KEY": "k" * 16}, None) == b"k" * 16
    assert run_key({"COMMWATCH_CLUSTER_KEY": "k" * 16}, b"f" * 32 + b"\n") == b"f" * 32
    for variables in ({}, {"COMMWATCH_CLUSTER_KEY": "short"}):
        with pytest.raises(BrokenRun, match="openssl rand"):
            run_key(variables, None)


def test_lists_of_nodes_are_read_as_slurm_writes_them() -> None:
    """Leading zeros stay, brackets may stand twice."""
    assert hostlist("gpu[01-03,07],login1") == ["gpu01", "gpu02", "gpu03", "gpu07", "login1"]
    assert hostlist("r[1-2]n[0-1]") == ["r1n0", "r1n1", "r2n0", "r2n1"]
    for wrong in ("", "gpu[1-999999]", "gpu[x]", "gpu]1["):
        with pytest.raises(BrokenRun):
            hostlist(wrong)


@given(st.integers(min_value=1, max_value=70))
def test_each_path_is_tried_from_both_ends(count: int) -> None:
    """A partner's partners include oneself; nobody is left alone, nobody has more than 2 log N."""
    ranks = list(range(0, 3 * count, 3))
    chosen = {rank: partners(rank, ranks) for rank in ranks}

    for rank, others in chosen.items():
        assert rank not in others
        assert len(set(others)) == len(others) <= max(15, 2 * count.bit_length())
        assert all(rank in chosen[one] for one in others)
        assert others or count == 1
