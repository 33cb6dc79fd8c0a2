"""`cluster plan` and `cluster locate`: what they print, exit codes, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commwatch.__main__ import main
from commwatch.cluster.run_file import (
    SCHEMA,
    Measured,
    Member,
    Run,
    block_of_slurm,
    encode_run,
    leaf_of_labels,
    leaf_of_slurm,
    read_groups,
    read_run,
)
from support.passes import in_one_pass

EXAMPLES = Path(__file__).parents[2] / "docs" / "using" / "cluster"
PAGE = EXAMPLES.with_suffix(".md")
Output = pytest.CaptureFixture[str]


def saved(folder: Path, **others: Any) -> Path:
    """A run of two nodes, with what a test changes in it."""
    run = {
        "schema": SCHEMA,
        "members": [{"name": "gpu01"}, {"name": "gpu02"}],
        "measured": [{"round": 1, "first": 0, "second": 1, "rail": 0, "forward": 5e9, "backward": 5e9}],
    }
    file = folder / "run.json"
    file.write_text(json.dumps({**run, **others}))
    return file


def ended(*arguments: object) -> int:
    """The exit code of `commwatch cluster`."""
    return main(["cluster", *map(str, arguments)])


# --- locate ---


@pytest.mark.parametrize("name", ["nccl-tests-106", "slow-transmitter"])
def test_the_page_shows_what_is_printed(name: str, capsys: Output) -> None:
    """Of the run files beside it."""
    ended("locate", EXAMPLES / f"{name}.json")

    assert f"<!-- output: cluster/{name}.json -->\n```\n{capsys.readouterr().out}```\n" in PAGE.read_text()


def test_the_page_shows_the_picture_that_is_drawn(tmp_path: Path) -> None:
    """Of the slow transmitter."""
    ended("locate", EXAMPLES / "slow-transmitter.json", "--output", tmp_path / "run.svg")

    shown = EXAMPLES.parents[1] / "images" / "cluster-slow-transmitter.svg"
    assert shown.read_text() == (tmp_path / "run.svg").read_text()


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        # nccl-tests issue 106, from the file in docs/using/cluster.
        ("nccl-tests-106", 1, ["\nnode se02gn644 is slow, both ways: 56 % of the usual bandwidth; 2 measurements\n",
                               "se02gn284 or se02gn678: measure each with another node"]),
        # DeepSpeed issue 5770: no part is slow; the next command is there, with what was measured.
        ("deepspeed-5770", 0, ["no part is slow, the network is the bottleneck: a node sends 1.13 GB/s to another one, "
                               "90 % of the 1.25 GB/s expected; its own GPUs exchange 20 GB/s, 17.8 times that\n",
                               "commwatch estimate --nodes 2 --network 8.74Gbit/s 9.28Gbit/s --intra-node 20GB/s"]),
        # A socket beside InfiniBand is named once, and not as slow as well.
        ("mixed-transport", 1, ["\npair node1 and node2 on rail 1 goes over a socket (NET/Socket) where others do not; "
                                "2 measurements\n"]),
    ],
)  # fmt: skip
def test_published_runs_are_told_in_words(name: str, code: int, words: list[str], capsys: Output) -> None:
    """Each part once, with the figures."""
    assert ended("locate", EXAMPLES / f"{name}.json") == code

    shown = capsys.readouterr().out
    assert [one for one in words if one not in shown] == []
    assert ("is slow" in shown) == (name != "mixed-transport")


def test_json_has_the_verdict(capsys: Output) -> None:
    """With a schema."""
    assert ended("locate", EXAMPLES / "nccl-tests-106.json", "--json") == 1

    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "commwatch-cluster-verdict/1"
    assert [(one["kind"], one["elements"]) for one in shown["named"]] == [("node", ["se02gn644"])]


def test_groups_of_a_file_replace_those_of_the_run(tmp_path: Path, capsys: Output) -> None:
    """And the output says where they are from."""
    groups = tmp_path / "leaves.txt"
    groups.write_text("# node leaf\ngpu01 leaf0\ngpu02 leaf1  # the other one\n")

    assert ended("locate", saved(tmp_path), "--groups", groups) == 0

    assert capsys.readouterr().out.startswith("2 nodes, 1 measured pair, 2 leaves (file)\n")


def test_sockets_beside_rdma_adapters_are_shown(tmp_path: Path, capsys: Output) -> None:
    """With what they carry."""
    socket = {
        "round": 1,
        "first": 0,
        "second": 1,
        "rail": 0,
        "forward": 5e9,
        "backward": 5e9,
        "transport": "NET/Socket",
    }
    members = [{"name": name, "rates": [50e9]} for name in ("gpu01", "gpu02")]

    assert ended("locate", saved(tmp_path, members=members, measured=[socket])) == 1

    assert (
        "pair gpu01 and gpu02 on rail 0 goes over a socket (NET/Socket) and no RDMA adapter: "
        "10 % of the expected bandwidth; 1 measurement\n"
    ) in capsys.readouterr().out


def test_fewer_than_two_nodes_is_exit_code_3(tmp_path: Path, capsys: Output) -> None:
    """Nothing was measured."""
    assert ended("locate", saved(tmp_path, measured=[])) == 3
    assert "fewer than two nodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"schema": "commwatch-cluster-run/9"}, "schema 'commwatch-cluster-run/9'; this version reads"),
        ({"members": [{"name": "a"}, {"name": "a"}]}, "a node is twice among the members"),
        ({"measured": [{"round": 1, "first": 0, "second": 2}]}, "$.measured[0]: 0 with 2 are no two of 2 members"),
        ({"measured": [{"round": 1, "first": 0, "second": 1, "rail": 99}]}, "$.measured[0]: rail 99; expected 0 to 63"),
        (
            {"measured": [{"round": 1, "first": 0, "second": 1, "forward": 0}]},
            "$.measured[0].forward: 0.0; expected",
        ),
        ({"measured": [{"round": 1, "first": 0, "second": "x"}]}, "Expected `int`, got `str`"),
        ({"expected": -1}, "$.expected: -1.0; expected 1e-12 to 1e+15"),
        ({"members": [{"name": "a", "rates": [0]}, {"name": "b"}]}, "$.members[0].rates: 0.0; expected"),
        ({"colour": "red"}, "unknown field `colour`"),
    ],
)
def test_a_run_that_cannot_be_is_one_line_and_exit_code_5(
    others: dict[str, Any], said: str, tmp_path: Path, capsys: Output
) -> None:
    """With the file and the place in it."""
    file = saved(tmp_path, **others)

    assert ended("locate", file) == 5

    shown = capsys.readouterr().err
    assert shown.startswith(f"commwatch: {file}: ")
    assert said in shown
    assert shown.count("\n") == 1


def test_a_file_that_is_no_run_is_one_line_and_exit_code_5(tmp_path: Path, capsys: Output) -> None:
    """Also one that is not there."""
    for content in (b"", b"{", b"\xff\xfe", b"[]", None):
        file = tmp_path / ("none.json" if content is None else "run.json")
        if content is not None:
            file.write_bytes(content)
        assert ended("locate", file) == 5
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("other01 leaf0\n", "names none of the 2 members"),
        ("gpu01\n", "leaves.txt:1: 'gpu01'; expected NODE LEAF"),
        ("gpu01 a\ngpu01 b\n", "leaves.txt:2: gpu01 has two leaves"),
        ("\n", "names no node"),
        ('{"items": [{"metadata": {"name": "gpu01", "labels": {}}}]}', "no node has a label"),
        ('{"items": 1}', "Expected `array`"),
    ],
)
def test_groups_that_cannot_be_used_are_one_line_and_exit_code_5(
    text: str, said: str, tmp_path: Path, capsys: Output
) -> None:
    """Nobody is named by them, or a line is wrong."""
    groups = tmp_path / "leaves.txt"
    groups.write_text(text)

    assert ended("locate", saved(tmp_path), "--groups", groups) == 5

    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


def test_a_run_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    """Nothing is lost."""
    run = Run(
        SCHEMA,
        (Member("a", "leaf0", "H100", (50e9,)), Member("b")),
        (Measured(1, 0, 1, 0, 1e9, None, None, 2e-6, "NET/IB"), Measured(2, 0, 1, 0, failed="refused")),
        "run 7", "slurm", 1e9, 2e9,
    )  # fmt: skip
    file = tmp_path / "run.json"
    file.write_bytes(encode_run(run))

    assert read_run(file) == run


# --- groups ---


@in_one_pass(
    "address, pattern, leaf, block",
    [
        ("spine.leaf0.gpu01", "switch.switch.node", "leaf0", "spine"),
        ("spine.leaf0.gpu01", "", "leaf0", "spine"),
        (".ib-core.tors-r1.gpu027", "switch.switch.switch.node", "tors-r1", "ib-core"),
        ("spine.leaf0.gpu01.site.example", "switch.switch.node", "leaf0", "spine"),
        ("leaf0.gpu01", "switch.node", "leaf0", ""),
        ("block1.gpu01", "block.node", "", "block1"),
        ("gpu01", "node", "", ""),
        ("", "", "", ""),
    ],
)
def test_slurm_names_leaf_and_block_in_the_environment_of_a_task(
    address: str, pattern: str, leaf: str, block: str
) -> None:
    """Without its topology plugin it is the node alone, and neither is known."""
    assert (leaf_of_slurm(address, pattern), block_of_slurm(address, pattern)) == (leaf, block)


def test_both_generations_of_topograph_name_the_leaf(tmp_path: Path) -> None:
    """The newer label wins; from the labels of a node, and from those of all nodes."""
    old, new = {"network.topology.nvidia.com/leaf": "a"}, {"fabric.topograph.run/tier-0": "b"}
    nodes = [{"metadata": {"name": name, "labels": labels}} for name, labels in (("gpu01", old), ("gpu02", new))]
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"items": nodes}))

    assert [leaf_of_labels(one) for one in (old, new, {**old, **new}, {})] == ["a", "b", "b", ""]
    assert read_groups(file) == {"gpu01": "a", "gpu02": "b"}


# --- plan ---


def test_a_plan_has_the_pairs_of_two_rounds(tmp_path: Path, capsys: Output) -> None:
    """Within leaves, then between them; the same again with the same seed."""
    members = tmp_path / "members.txt"
    members.write_text("gpu[01-02]\ngpu[03-03],gpu04 # the last one\n")
    groups = tmp_path / "leaves.txt"
    groups.write_text("gpu01 leaf0\ngpu02 leaf0\ngpu03 leaf1\ngpu04 leaf1\n")

    assert ended("plan", "--members", members, "--groups", groups) == 0
    shown = capsys.readouterr().out
    assert ended("plan", "--members", members, "--groups", groups, "--json") == 0
    plan = json.loads(capsys.readouterr().out)

    assert shown.startswith("4 nodes, 2 leaves, seed 1\nround 1: 2 pairs in 1 wave\n  gpu01 gpu02\n  gpu03 gpu04\n")
    assert [len(one["pairs"]) for one in plan["rounds"]] == [2, 2]
    assert all(int(one["second"][-1]) - int(one["first"][-1]) in (2, 1, 3) for one in plan["rounds"][1]["pairs"])
    assert {(one["first"] in ("gpu01", "gpu02")) for one in plan["rounds"][1]["pairs"]} == {True}


@pytest.mark.parametrize(
    ("members", "code", "said"),
    [
        ("gpu01,gpu01", 5, "gpu01 is twice in the list of members"),
        (",", 5, "no members"),
        ("gpu[01-02],gpu02", 5, "gpu02 is twice in the list of members"),
        ("gpu[04-01]", 5, "'gpu[04-01]' is no list of at most 65536 hosts; expected names, or ranges with the lower"),
        ("gpu[01-", 5, "cluster: --members: 'gpu[01-' is no list"),
        ("gpu[1-999999]", 5, "is no list of at most 65536 hosts"),
        ("gpu[01]", 3, "fewer than two nodes"),
        ("./none.txt", 5, "none.txt: No such file or directory"),
        ("gpu01", 3, "fewer than two nodes"),
    ],
)
def test_members_that_cannot_be_planned_are_one_line(members: str, code: int, said: str, capsys: Output) -> None:
    """With the exit code of docs/using/cluster.md."""
    assert ended("plan", "--members", members) == code

    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert (shown.out + shown.err).count("\n") == 1


@pytest.mark.parametrize("command", ["plan", "locate"])
def test_each_has_help_with_an_example(command: str, capsys: Output) -> None:
    """A user can start from --help."""
    with pytest.raises(SystemExit, match="0"):
        main(["cluster", command, "--help"])

    assert f"example: commwatch cluster {command}" in " ".join(capsys.readouterr().out.split())


# --- the picture ---


def test_a_run_is_drawn_with_what_is_named_in_it(tmp_path: Path, capsys: Output) -> None:
    """Each node by its name, the slow sender's cells marked, and what the mark means."""
    file, picture = tmp_path / "run.json", tmp_path / "run.svg"
    names, rates = [f"gpu{number}" for number in range(4)], (5e9, 2e9)
    measured = [
        Measured(1, first, second, rail, rates[(first, rail) == (1, 0)], rates[(second, rail) == (1, 0)])
        for first in range(4)
        for second in range(first)
        for rail in (0, 1)
    ]
    file.write_bytes(encode_run(Run(SCHEMA, tuple(map(Member, names)), tuple(measured))))

    assert ended("locate", file, "--output", picture) == 1

    named = capsys.readouterr().out.splitlines()[1]
    assert named.startswith("NIC of gpu1 on rail 0 is slow, sending: 40 %")
    drawn = picture.read_text()
    assert all(name in drawn for name in names)
    assert "slowest of 2 rails" in drawn
    assert drawn.count(">A<") == 4  # three cells, and the note


def test_a_picture_that_cannot_be_drawn_is_said(tmp_path: Path, capsys: Output) -> None:
    """A name or folder that cannot be before the run is read; of too many nodes no cell could be read."""
    file = tmp_path / "run.json"
    file.write_bytes(encode_run(Run(SCHEMA, tuple(Member(f"gpu{number}") for number in range(257)), ())))

    for run, name, words in (
        ("/nowhere/run.json", "run.png", "expected a name that ends in .svg"),
        ("/nowhere/run.json", "no/run.svg", "no folder"),
        (file, "run.svg", "257 nodes; a picture shows at most 256"),
    ):
        assert ended("locate", run, "--output", tmp_path / name) == 2
        assert words in capsys.readouterr().err
