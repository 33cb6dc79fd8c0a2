"""commwatch probe: one probe cycle by hand."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from commwatch.analysis.bus_bandwidth import algorithm_bandwidth, bus_bandwidth
from commwatch.analysis.expected import Expected, expected_bus_bandwidth
from commwatch.commands.common import json_option, print_json, print_table
from commwatch.config import Config
from commwatch.errors import CommwatchError
from commwatch.maintenance import MaintenanceFile
from commwatch.probes.gate import GateFacts, SchedulerFacts, decide
from commwatch.probes.gpus import ProbeGpu, driver_loaded, read_gpus, simulated_gpus
from commwatch.probes.launch import Launcher, Progress
from commwatch.probes.plan import (
    CyclePlan,
    CycleResult,
    Measured,
    SimulatedNodePlan,
    Skipped,
    choose_backend,
    plan_cycle,
)
from commwatch.probes.scheduler import initial_pid_namespace, scheduler_facts
from commwatch.simulation.names import absolute
from commwatch.state import state_path
from commwatch.thresholds import load_thresholds
from commwatch.units import format_bytes, format_rate, format_seconds

GOOD, BAD, SKIPPED = 0, 1, 3


class UnknownProbe(CommwatchError):
    """A name that the configuration does not define."""

    exit_code = 2


class Answer(msgspec.Struct, kw_only=True):
    """What one cycle came to, as ``--json`` prints it."""

    probe: str
    backend: str
    collective: str
    ranks: int
    latency_bytes: int
    bandwidth_bytes: int
    result: CycleResult
    bus_bandwidth_bytes_per_second: float | None = None
    algorithm_bandwidth_bytes_per_second: float | None = None
    expected: Expected | None = None
    low: bool = False
    """Below the threshold of the expected bandwidth."""

    @property
    def exit_code(self) -> int:
        """0 good, 1 failed or low, 3 skipped."""
        if isinstance(self.result, Skipped):
            return SKIPPED
        return GOOD if isinstance(self.result, Measured) and not self.low else BAD


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "probe",
        parents=parents,
        help="run one probe cycle now",
        description="Runs the configured probes once, on a free node only, and prints latency and bandwidth of the "
        "slowest rank. Nothing is added to what the daemon knows. Exit code 0: good; 1: failed, or below the "
        "threshold of the expected bandwidth; 2: wrong use; 3: skipped, because the node is not free or cannot probe.",
        epilog="example: commwatch probe all_reduce --json",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="probes of the configuration (default: all)")
    parser.add_argument(
        "--ignore-scheduler",
        action="store_true",
        help="do not ask whether a job has this node: for use inside a job of your own; GPUs in use still stop it",
    )
    json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, config: Config) -> int:
    """Run the probes one after another and print."""
    names = args.names or list(config.probes.definitions)
    for name in names:
        if name not in config.probes.definitions:
            known = ", ".join(config.probes.definitions)
            raise UnknownProbe(f"probe: no probe {name!r} is configured; there are {known}")
    answers = [_probe(name, config, args.ignore_scheduler) for name in names]
    if args.json:
        print_json(answers)
    else:
        print_table("Probes", _COLUMNS, [_row(answer) for answer in answers])
        for answer in answers:
            if not isinstance(answer.result, Measured):
                print(f"{answer.probe}: {answer.result.reason}: {answer.result.detail}")
    return max((answer.exit_code for answer in answers), key=(GOOD, SKIPPED, BAD).index, default=GOOD)


def _probe(name: str, config: Config, ignore_scheduler: bool) -> Answer:
    probe = config.probes.definitions[name]
    simulation = None
    if config.simulation.preset:
        simulation = SimulatedNodePlan(
            preset=absolute(config.simulation.preset),
            faults_file=config.simulation.faults or None,
            started_at=time.time(),
        )
    driver = simulation is None and driver_loaded(Path(config.paths.procfs))
    backend = choose_backend(probe, simulated=simulation is not None, driver=driver)
    gpus: tuple[ProbeGpu, ...] = ()
    if simulation is not None:
        gpus = simulated_gpus(simulation)
    elif backend == "nccl" and driver:
        gpus = read_gpus()
    plan = plan_cycle(
        name,
        probe,
        config.probes,
        backend=backend,
        devices=tuple(gpu.uuid for gpu in gpus),
        simulation=simulation,
    )
    facts = _facts(config, gpus, ignore_scheduler)
    if skip := decide(config.probes.gate, backend, plan.ranks, facts):
        return _answer(plan, Skipped(finished_at=time.time(), reason=skip.reason, detail=skip.detail))
    with _progress(name) as progress:
        result = asyncio.run(Launcher(procfs=Path(config.paths.procfs)).run(plan, progress))
    if not isinstance(result, Measured) or plan.shares_gpus:
        return _answer(plan, result)
    names = {gpu.name for gpu in gpus}
    expected = expected_bus_bandwidth(
        configured=probe.expected_bandwidth,
        backend=backend,
        gpu_name=names.pop() if len(names) == 1 else None,
        nvlinks_per_gpu=gpus[0].nvlinks if gpus else None,
        ranks=plan.ranks,
        size_bytes=plan.bandwidth_bytes,
    )
    return _judged(_answer(plan, result), result, expected, config)


def _facts(config: Config, gpus: tuple[ProbeGpu, ...], ignore_scheduler: bool) -> GateFacts:
    procfs = Path(config.paths.procfs)
    maintenance = MaintenanceFile(state_path(config)).read(time.time())
    scheduler = SchedulerFacts(slurm_jobs=0)
    if not ignore_scheduler:
        scheduler = scheduler_facts(procfs, Path(config.paths.sysfs))
    return GateFacts(
        enabled=config.probes.enabled,
        maintenance=maintenance.reason if maintenance else "",
        torch_installed=importlib.util.find_spec("torch") is not None,
        scheduler=scheduler,
        initial_pid_namespace=initial_pid_namespace(procfs),
        gpus=tuple(gpu.facts for gpu in gpus),
    )


def _answer(plan: CyclePlan, result: CycleResult) -> Answer:
    return Answer(
        probe=plan.probe,
        backend=plan.backend,
        collective=plan.collective,
        ranks=plan.ranks,
        latency_bytes=plan.latency_bytes,
        bandwidth_bytes=plan.bandwidth_bytes,
        result=result,
    )


def _judged(answer: Answer, result: Measured, expected: Expected | None, config: Config) -> Answer:
    rate = bus_bandwidth(answer.ranks, answer.bandwidth_bytes, result.bandwidth_seconds)
    answer.bus_bandwidth_bytes_per_second = rate
    answer.algorithm_bandwidth_bytes_per_second = algorithm_bandwidth(answer.bandwidth_bytes, result.bandwidth_seconds)
    answer.expected = expected
    if expected is not None and expected.source != "model":
        thresholds = load_thresholds(Path(config.thresholds) if config.thresholds else None)
        answer.low = rate / expected.bytes_per_second < thresholds.probe_bandwidth_utilization_low_ratio
    return answer


_COLUMNS = ("probe", "backend", "ranks", "latency", "size", "bus bandwidth", "expected", "set-up", "verdict")


def _row(answer: Answer) -> tuple[str, ...]:
    head = (answer.probe, answer.backend, str(answer.ranks))
    result, rate, expected = answer.result, answer.bus_bandwidth_bytes_per_second, answer.expected
    size = format_bytes(answer.bandwidth_bytes)
    if not isinstance(result, Measured):
        return (*head, "-", size, "-", "-", "-", "skipped" if isinstance(result, Skipped) else "failed")
    if rate is None:
        return (*head, "-", size, "-", "-", format_seconds(result.setup_seconds), "sums exact")
    shown = f"{format_rate(expected.bytes_per_second)} ({expected.source})" if expected else "not known"
    return (
        *head,
        format_seconds(result.latency_seconds),
        size,
        format_rate(rate),
        shown,
        format_seconds(result.setup_seconds),
        "low" if answer.low else "good",
    )


@contextmanager
def _progress(name: str) -> Iterator[Progress]:
    """Show the phases on standard error: one live line on a terminal, a line for each elsewhere."""
    if not sys.stderr.isatty():
        yield lambda phase, seconds: print(f"{name}: {phase} after {seconds:.1f} s", file=sys.stderr)
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{name}: start") as status:
        yield lambda phase, seconds: status.update(f"{name}: {phase} ({seconds:.1f} s)")
