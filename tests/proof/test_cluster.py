"""A check whose members are killed at any moment: the others end in time, and nothing is left."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from commwatch.cluster.environment import DEFAULT_PORT, BrokenRun, Place
from commwatch.cluster.member import Progress, Run, check
from commwatch.cluster.store import Deadlines
from support.daemon import environment
from support.namespaces import Nodes
from support.waiting import until

pytestmark = pytest.mark.namespaces

COUNT = 4
NAMES = tuple(f"node{node}" for node in range(COUNT))
KILLS = 100
LONGEST_SECONDS = 60.0
KERNELS_OWN = ("04", "05", "06")
"""FIN_WAIT1, FIN_WAIT2, TIME_WAIT."""
CODES = {"fine": 0, "named": 1, "too_few": 3}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Four nodes that are as they should be."""
    with Nodes(COUNT, tmp_path_factory.mktemp("nodes")).made() as made:
        yield made


def stand(nodes: Nodes, node: int) -> None:
    """One member in a process of its own; its exit code is the command's."""
    nodes.enter(node)
    place = Place("members", node, COUNT, "node0", DEFAULT_PORT, NAMES)
    run = Run(place, b"the key of this run", {}, deadlines=Deadlines(join=1.5, report=4.0, step=0.5))
    try:
        verdict = asyncio.run(check(run, Progress(lambda text: None)))
    except BrokenRun as error:
        sys.exit(error.exit_code)
    sys.exit(CODES[verdict.outcome])


def test_a_hundred_kills_leave_no_process_no_socket_and_no_file(nodes: Nodes) -> None:
    """Any member at any moment of the run; with member 0 the run is broken, else the others have their verdict."""
    context, chance, outcomes = multiprocessing.get_context("fork"), random.Random(18), Counter[str]()  # noqa: S311
    before = set(os.listdir("/tmp"))
    for _ in range(KILLS):
        members = [context.Process(target=stand, args=(nodes, node)) for node in range(COUNT)]
        for one in members:
            one.start()
        victim = chance.randrange(COUNT)
        time.sleep(chance.uniform(0.0, 0.25))
        os.kill(members[victim].pid or 0, signal.SIGKILL)
        for one in members:
            one.join(LONGEST_SECONDS)
        codes = [one.exitcode for one in members]
        assert None not in codes, f"a member is still there {LONGEST_SECONDS} s after member {victim} was killed"
        others = {code for node, code in enumerate(codes) if node != victim}
        assert others <= {0, 1, 5}, codes
        assert len(others) == 1 or victim == 0, codes
        outcomes[f"member {'0' if victim == 0 else 'other'} killed, the others: {sorted(map(str, others))}"] += 1
        for node in range(COUNT):
            until(lambda node=node: not left(nodes, node), describe=lambda node=node: left(nodes, node))  # type: ignore[misc]
    assert {one for one in set(os.listdir("/tmp")) - before if "commwatch" in one} == set()
    print(outcomes)


@pytest.mark.torch
def test_torchrun_starts_a_member_on_each_node(nodes: Nodes) -> None:
    """Its agent holds the meeting port, so the store takes the next one."""
    key = {**environment(), "COMMWATCH_CLUSTER_KEY": "the key of this run"}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=node0",
        "--master-port=29500", "--no-python",
    ]  # fmt: skip
    check_command = [sys.executable, "-m", "commwatch", "cluster", "check", "--json"]
    started = []
    for node in range(2):
        hosts = nodes.folder / f"hosts{node}"
        hosts.write_text(nodes.usual_hosts())
        enter = (
            f"hostname node{node}; mount --bind {hosts} /etc/hosts; "
            f'exec nsenter --net=/run/netns/{nodes.namespace(node)} "$@"'
        )
        started.append(subprocess.Popen(
            ["unshare", "--mount", "--uts", "sh", "-c", enter, "sh", *command, f"--node-rank={node}", *check_command],
            env=key, stdout=subprocess.PIPE, text=True,
        ))  # fmt: skip

    said = [process.communicate(timeout=300)[0] for process in started]

    assert [process.returncode for process in started] == [0, 0]
    verdict = json.loads(said[0])
    assert (verdict["outcome"], [one["name"] for one in verdict["members"]]) == ("fine", ["node0", "node1"])


def left(nodes: Nodes, node: int) -> list[str]:
    """The TCP sockets in a node's namespace, without those that the kernel keeps for a while by itself."""
    done = subprocess.run(
        ["nsenter", f"--net=/run/netns/{nodes.namespace(node)}", "cat", "/proc/net/tcp"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line for line in done.stdout.splitlines()[1:] if line.split()[3] not in KERNELS_OWN]
