"""Real groups of ranks over gloo."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from commwatch.config import settings
from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.plan import CyclePlan, Measure, Measured
from commwatch.probes.rank_plan import Collective, Step
from commwatch.probes.workload import plan_cycle
from probes.cycles import PROCFS, all_quiet
from support.waiting import PATIENCE_SECONDS

KIB = 2**10


def torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch_version(), reason="torch is not installed"),
]


def gloo_plan(*measures: Measure, ranks: int = 2, size: int = 64 * KIB, timed_seconds: float = 0.2) -> CyclePlan:
    """One cycle with the steps of several measures."""
    plans = [
        plan_cycle(
            "x",
            settings.Probe(measure=measure, ranks=ranks, bandwidth_bytes=settings.Size(size)),
            settings.Probes(),
            backend="gloo",
            devices=(),
        )
        for measure in measures
    ]
    steps = tuple(step for plan in plans for step in plan.steps)
    return msgspec.structs.replace(plans[0], steps=steps, timed_seconds=timed_seconds)


def rank_environment() -> dict[str, str]:
    paths = ":".join(path for path in sys.path if path)
    return os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


def run_ranks(what: str, plan: CyclePlan, folder: Path, answer: Any) -> list[Any]:
    """What ranks without a parent say (see ``gloo_rank``); those of a group that hangs are ended."""
    file = folder / "plan.json"
    file.write_bytes(msgspec.json.encode(plan.rank_plan(0, str(folder / "rendezvous"))))
    script = Path(__file__).with_name("gloo_rank.py")
    with ExitStack() as stack:
        ranks = []
        for rank in range(plan.ranks):
            process = subprocess.Popen(
                [sys.executable, str(script), what, str(rank), str(file)],
                stdout=subprocess.PIPE,
                stderr=stack.enter_context((folder / f"errors-{rank}").open("wb")),
                env=rank_environment(),
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(process)
        outputs = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in ranks]
    for rank, process in enumerate(ranks):
        assert process.returncode == 0, (folder / f"errors-{rank}").read_text()
    return [msgspec.json.decode(output, type=answer) for output in outputs]


class Tampered(msgspec.Struct):
    """What a rank says of calls that were tampered with, for each step."""

    flipped: list[tuple[bool, bool, bool]]
    held: float
    """Seconds by which calls began late; ``slowed`` is what each step then took."""
    slowed: list[float]
    reasons: list[str]


TAMPERED_PLAN = gloo_plan(*get_args(Collective), "pairs", ranks=2)


@pytest.fixture(scope="module")
def tampered(tmp_path_factory: pytest.TempPathFactory) -> list[Tampered]:
    return run_ranks("tampered", TAMPERED_PLAN, tmp_path_factory.mktemp("tampered"), Tampered)


def test_one_flipped_bit_is_found_in_every_operation(tampered: list[Tampered]) -> None:
    """The last bit of what any rank receives, in a timed call or in the checked one, makes the step wrong."""
    for rank, answers in enumerate(tampered):
        for step, (untouched, while_timed, while_checked) in zip(TAMPERED_PLAN.steps, answers.flipped, strict=True):
            assert untouched, step
            assert not while_timed, step
            assert while_checked == (not receives(step, rank)), step


def receives(step: Step, rank: int) -> bool:
    one_way = step.operation == "send_recv" and step.purpose == "bandwidth" and not step.both_ways
    return not one_way or rank in (destination for _, destination in step.pairs)


def test_times_are_those_of_whole_calls(tampered: list[Tampered]) -> None:
    """Where one rank begins each call 0.1 s late, a call takes that on every clock, and half a round trip half of it.

    One rank is not held: the root of a broadcast, which waits for nobody.
    """
    for number, step in enumerate(TAMPERED_PLAN.steps):
        share = 0.5 if step.operation == "send_recv" and step.purpose == "latency" else 1.0
        for rank in step.clocks[1:] if step.operation == "broadcast" else step.clocks:
            expected = share * tampered[rank].held
            assert expected * 0.6 < tampered[rank].slowed[number] < expected * 1.6, step


def test_errors_that_are_known_have_a_name(tampered: list[Tampered]) -> None:
    """NCCL's errors are NCCL's, a call that this torch does not have is a skip, and the rest is as torch tells it."""
    for rank in tampered:
        of_gloo, of_nccl, missing, unknown = rank.reasons
        assert of_gloo == "crashed: gloo said no"
        assert of_nccl == "nccl_error: NCCL said no"
        assert missing.startswith(f"no_gpu_backend: torch {torch_version().split('+')[0]}")
        assert missing.endswith(": ProcessGroupGloo does not support reduce_scatter")
        assert unknown == "Connection closed by peer"


def test_a_gloo_cycle_measures_two_ranks(tmp_path: Path) -> None:
    """A whole cycle gives the times of each step and versions, and leaves nothing behind."""
    plan = gloo_plan("all_reduce")

    result = asyncio.run(Launcher(procfs=PROCFS, temporary=tmp_path).run(plan, all_quiet))

    assert isinstance(result, Measured)
    for outcome in result.outcomes:
        assert all(seconds is not None and 1e-6 < seconds < PATIENCE_SECONDS for seconds in outcome.seconds)
    assert [outcome.step for outcome in result.outcomes] == list(plan.steps)
    assert result.torch_version
    assert result.nccl_version == ""
    assert list(tmp_path.iterdir()) == []
