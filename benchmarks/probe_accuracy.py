"""How near a gloo probe of two ranks comes to a plain loop over the same collective.

Run ``python benchmarks/probe_accuracy.py``; needs torch. Probe and loop take turns, so that both see the same machine.
The loop shares no code with the probe.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / root) for root in ("daemon", "exporters")]

from commwatch import config  # noqa: E402 - the checkout need not be installed
from commwatch.probes.launch import Launcher  # noqa: E402 - as above
from commwatch.probes.plan import Measured, plan_cycle  # noqa: E402 - as above

WARM_UP_CALLS = 20
LOOP_CALLS = {"latency": 500, "bandwidth": 50}


def plain_loop(rank: int, rendezvous: str, latency_bytes: int, bandwidth_bytes: int) -> dict[str, float]:
    """Median seconds of one all-reduce by size, each call timed by itself."""
    import torch  # noqa: TID251 - the yardstick is a plain torch loop, in a process of its own
    import torch.distributed as dist  # noqa: TID251 - as above

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    medians = {}
    for name, size in (("latency", latency_bytes), ("bandwidth", bandwidth_bytes)):
        buffer = torch.zeros(size // 4)
        times = []
        for call in range(WARM_UP_CALLS + LOOP_CALLS[name]):
            started = time.perf_counter()
            dist.all_reduce(buffer)
            if call >= WARM_UP_CALLS:
                times.append(time.perf_counter() - started)
        medians[name] = median(times)
    dist.destroy_process_group()
    return medians


def run_loop(latency_bytes: int, bandwidth_bytes: int) -> dict[str, float]:
    """The plain loop on two processes; the slower rank's medians."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [
                    *(sys.executable, __file__, "--loop-rank", str(rank), "--rendezvous", f"{folder}/store"),
                    *("--latency-bytes", str(latency_bytes), "--bandwidth-bytes", str(bandwidth_bytes)),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # torch warns of a missing NumPy
                env=environment,
                # As the probe's ranks: where the kernel schedules sessions as groups, their wake-ups take longer.
                start_new_session=True,
            )
            for rank in range(2)
        ]
        answers = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    return {name: max(answer[name] for answer in answers) for name in answers[0]}


def compare(rounds: int, latency_bytes: int, bandwidth_bytes: int) -> dict[str, Any]:
    """Medians over the rounds of probe and loop, and the time from the start of a cycle to its result."""
    probe = config.Probe(latency_bytes=config.Size(latency_bytes), bandwidth_bytes=config.Size(bandwidth_bytes))
    plan = plan_cycle("accuracy", probe, config.Probes(), backend="gloo", devices=())
    probed: dict[str, list[float]] = {"latency": [], "bandwidth": []}
    looped: dict[str, list[float]] = {"latency": [], "bandwidth": []}
    cycles = []
    for _ in range(rounds):
        started = time.perf_counter()
        result = asyncio.run(Launcher().run(plan))
        cycles.append(time.perf_counter() - started)
        if not isinstance(result, Measured):
            raise SystemExit(f"the probe gave no result: {result.reason}: {result.detail}")
        probed["latency"].append(result.latency_seconds)
        probed["bandwidth"].append(result.bandwidth_seconds)
        for name, seconds in run_loop(latency_bytes, bandwidth_bytes).items():
            looped[name].append(seconds)
    return {
        "rounds": rounds,
        "cycle_seconds": median(cycles),
        "calls": [
            {
                "call": name,
                "bytes": size,
                "probe_seconds": median(probed[name]),
                "loop_seconds": median(looped[name]),
                "probe_over_loop": median(probed[name]) / median(looped[name]),
            }
            for name, size in (("latency", latency_bytes), ("bandwidth", bandwidth_bytes))
        ],
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency-bytes", type=int, default=8)
    parser.add_argument("--bandwidth-bytes", type=int, default=4 * 2**20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--loop-rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.loop_rank is not None:
        print(json.dumps(plain_loop(args.loop_rank, args.rendezvous, args.latency_bytes, args.bandwidth_bytes)))
        return
    figures = compare(args.rounds, args.latency_bytes, args.bandwidth_bytes)
    if args.json:
        print(json.dumps(figures, indent=2))
        return
    for call in figures["calls"]:
        print(
            f"{call['call']:<9} {call['bytes']:>9} B: probe {call['probe_seconds'] * 1e6:9.1f} µs, "
            f"loop {call['loop_seconds'] * 1e6:9.1f} µs, probe / loop {call['probe_over_loop']:.2f}"
        )
    print(f"start of a cycle to its result: {figures['cycle_seconds']:.2f} s (median of {figures['rounds']})")


if __name__ == "__main__":
    main()
