"""Section on jitter: the step of a busy GPU with and without the daemon, which is scraped once a second.

A step is a queue of kernels that fill the GPU's memory, and the wait for their end, about 5 ms. It runs in a process of
its own (``python -m benchmarks.hardware.step SECONDS PCI_ADDRESS COUNT``); a simulated GPU has a step of the CPU.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pynvml
from benchmarks.daemon import command_of
from benchmarks.hardware.cuda import Cuda, CudaError
from benchmarks.hardware.place import ROOT, CannotRun, Place, report
from benchmarks.jitter import scraped

from commwatch.sources.nvml.gpu import pci_bus_id

TURNS = ("alone", "beside", "beside", "alone")
_TURN_SECONDS = 6.0
_STEP_SECONDS = 0.005
_WARM_UP_SECONDS, _TRIED = 0.5, 8
"""Until the clocks are up, and how many kernels are timed together to find how many a step needs."""
_FILLED_BYTES = 256 * 2**20
_ENDS_SECONDS = 20.0


def jitter(place: Place) -> None:
    """Turns alone and beside the daemon, in an order in which a drift of the clocks cancels out."""
    handle = place.open_driver()[0]
    address = "" if place.preset else pci_bus_id(pynvml.nvmlDeviceGetPciInfo(handle))
    pynvml.nvmlShutdown()
    config = place.out / "daemon.yaml"
    config.write_text("probes: {enabled: false}\n", encoding="utf-8")
    times: dict[str, list[float]] = {kind: [] for kind in TURNS}
    count = 0
    for kind in TURNS:
        if kind == "beside":
            port = _free_port()
            arguments = ["--config.file", str(config), *place.node_arguments]
            with scraped(command_of("commwatch", port, arguments, str(place.out / "state")), port, {}):
                count, found = _steps(place, address, count)
        else:
            count, found = _steps(place, address, count)
        times[kind] += found
        report(**{f"step_{kind}_{name}": figure for name, figure in _figures(times[kind]).items()})
    alone, beside = _figures(times["alone"]), _figures(times["beside"])
    for name in ("median", "p99"):
        report(**{f"step_ratio_{name}": beside[f"{name}_milliseconds"] / alone[f"{name}_milliseconds"]})


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _steps(place: Place, address: str, count: int) -> tuple[int, list[float]]:
    """Kernels in a step, and the time of each step in seconds; ``count`` of 0 finds out how many take about 5 ms."""
    seconds = _TURN_SECONDS * place.pace
    command = [sys.executable, "-m", "benchmarks.hardware.step", str(seconds), address, str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + _ENDS_SECONDS)
    if done.returncode:
        raise CannotRun(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}")
    count, times = json.loads(done.stdout)
    return count, times


def _figures(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=1000, method="inclusive")
    return {
        "median_milliseconds": cuts[499] * 1e3,
        "p99_milliseconds": cuts[989] * 1e3,
        "p999_milliseconds": cuts[998] * 1e3,
        "longest_milliseconds": max(times) * 1e3,
        "count": len(times),
    }


def _measure(step: Callable[[int], None], seconds: float, count: int) -> tuple[int, list[float]]:
    warm_up = time.perf_counter() + _WARM_UP_SECONDS
    taken = [0.0]
    while time.perf_counter() < warm_up or len(taken) < 2:
        began = time.perf_counter()
        step(_TRIED)
        taken.append((time.perf_counter() - began) / _TRIED)
    count = count or max(1, round(_STEP_SECONDS / statistics.median(taken[1:])))
    times: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until or len(times) < 2:
        step(count)
        times.append(time.perf_counter() - began)
    return count, times


def _on_cpu(count: int) -> None:
    for _ in range(count):
        sum(range(10_000))


def main() -> None:
    """Run steps; prints how many kernels each has, and their times in seconds, as JSON."""
    seconds, address, count = float(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if not address:
        print(json.dumps(_measure(_on_cpu, seconds, count)))
        return
    try:
        with Cuda(address) as cuda:
            memory = cuda.allocate(_FILLED_BYTES)

            def step(count: int) -> None:
                for _ in range(count):
                    cuda.fill(memory, _FILLED_BYTES)
                cuda.finish()

            print(json.dumps(_measure(step, seconds, count)))
    except CudaError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
