"""The simulated node as a whole: faults that come and go while it runs."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from commwatch.errors import ConfigError
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.probe_answers import SimulatedProbes
from simulation.harness import STARTED_AT, Rehearsal
from support.processes import blocks_sigterm
from support.waiting import PATIENCE_SECONDS, until

Drive = Callable[..., Rehearsal]
ROOTS = os.pathsep.join(str(Path(__file__).parents[2] / root) for root in ("daemon", "exporters"))


def code_of_name(handle: object) -> int:
    """The return code of a call that any healthy GPU answers."""
    try:
        pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError as error:
        code: int = error.value
        return code
    return 0


def test_an_unknown_preset_is_refused() -> None:
    """The error lists the presets."""
    with pytest.raises(ConfigError, match=r"no preset .*h100x8, .*rtx3090x4"):
        SimulatedNode("h100x9", None, 0.0)


def test_a_missing_file_of_faults_is_refused(tmp_path: Path) -> None:
    """A name with a slip must not look like a healthy node."""
    with pytest.raises(ConfigError, match=r"nosuch\.yaml: cannot be read"):
        SimulatedNode("h100x8", tmp_path / "nosuch.yaml", 0.0)


@pytest.mark.parametrize(
    ("kind", "code"),
    [("gpu_lost", pynvml.NVML_ERROR_GPU_IS_LOST), ("gpu_reset_required", pynvml.NVML_ERROR_RESET_REQUIRED)],
)
def test_a_gpu_in_trouble_answers_with_its_code(driver: Drive, kind: str, code: int) -> None:
    """On its handle, for a new handle, and for fields; the count and the other GPUs stay; it ends with the fault."""
    rehearsal = driver("h100x8", f"- {{fault: {kind}, gpu: 4, at: 200s, for: 60s}}")
    handle, other = pynvml.nvmlDeviceGetHandleByIndex(4), pynvml.nvmlDeviceGetHandleByIndex(3)
    assert code_of_name(handle) == pynvml.NVML_SUCCESS

    rehearsal.now = 200.0
    assert code_of_name(handle) == code
    for call, arguments in (
        (pynvml.nvmlDeviceGetHandleByIndex, (4,)),
        (pynvml.nvmlDeviceGetFieldValues, (handle, [138])),
        (pynvml.nvmlDeviceGetNvLinkState, (handle, 0)),
    ):
        with pytest.raises(pynvml.NVMLError) as caught:
            call(*arguments)
        assert caught.value.value == code
    assert code_of_name(other) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetCount() == 8

    rehearsal.now = 260.0
    assert code_of_name(handle) == pynvml.NVML_SUCCESS


def test_a_missing_card_moves_the_indexes(driver: Drive) -> None:
    """Seven GPUs; what was index 3 is index 2; the handle of the missing one finds nothing."""
    rehearsal = driver("h100x8", "- {fault: gpu_missing, gpu: 2, at: 200s}")
    missing, next_one = pynvml.nvmlDeviceGetHandleByIndex(2), pynvml.nvmlDeviceGetHandleByIndex(3)

    rehearsal.now = 200.0

    assert pynvml.nvmlDeviceGetCount() == 7
    assert pynvml.nvmlDeviceGetIndex(next_one) == 2
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(2)) == rehearsal.node.preset.gpus[3].uuid
    assert code_of_name(missing) == pynvml.NVML_ERROR_GPU_NOT_FOUND


def test_a_link_that_goes_down_is_seen_by_every_call(driver: Drive) -> None:
    """State 0 in function and field; its traffic becomes an invalid argument; fields asked before follow at once."""
    rehearsal = driver("h100x8", "- {fault: nvlink_down, gpu: 1, link: 5, at: 200s, for: 10s}")
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)

    def seen() -> tuple[int, int, int, int]:
        state, traffic = pynvml.nvmlDeviceGetFieldValues(handle, [(165, 5), (138, 5)])
        neighbour = pynvml.nvmlDeviceGetNvLinkState(handle, 6)
        return pynvml.nvmlDeviceGetNvLinkState(handle, 5), state.value.uiVal, traffic.nvmlReturn, neighbour

    assert seen() == (1, 1, pynvml.NVML_SUCCESS, 1)
    rehearsal.now = 200.0
    assert seen() == (0, 0, pynvml.NVML_ERROR_INVALID_ARGUMENT, 1)
    rehearsal.now = 210.0
    assert seen() == (1, 1, pynvml.NVML_SUCCESS, 1)


@pytest.mark.parametrize(
    ("kind", "counter", "field"), [("nvlink_replay", 0, 161), ("nvlink_recovery", 1, 162), ("nvlink_crc", 2, 163)]
)
def test_errors_are_seen_by_function_and_field(driver: Drive, kind: str, counter: int, field: int) -> None:
    """Each kind moves its own counter, on its own link."""
    driver("h100x8", f"- {{fault: {kind}, gpu: 0, link: 3, rate: 2/s, at: 90.25s}}")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    assert pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, 3, counter) == 20
    assert pynvml.nvmlDeviceGetFieldValues(handle, [(field, 3)])[0].value.ullVal == 20
    assert [pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, 3, other) for other in range(3) if other != counter] == [
        0,
        0,
    ]
    assert pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, 4, counter) == 0


def test_the_file_is_read_again_when_it_changes(driver: Drive) -> None:
    """A fault written while the node runs begins at that time, and goes when the file is emptied."""
    rehearsal = driver("h100x8")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert code_of_name(handle) == pynvml.NVML_SUCCESS

    rehearsal.write("- {fault: gpu_lost, gpu: 0}")
    assert code_of_name(handle) == pynvml.NVML_ERROR_GPU_IS_LOST

    rehearsal.write("")
    assert code_of_name(handle) == pynvml.NVML_SUCCESS


@pytest.mark.parametrize("broken", ["- {fault: gpu_lo", "- {fault: gpu_lost}", None])
def test_a_broken_file_changes_nothing_and_is_reported_once(
    driver: Drive, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Half-written, wrong or gone: the faults before it hold on, with one warning."""
    rehearsal = driver("h100x8", "- {fault: gpu_lost, gpu: 0, at: 0s}")

    if broken is None:
        rehearsal.file.unlink()
    else:
        rehearsal.write(broken)
    for _ in range(3):
        rehearsal.now += 1
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetHandleByIndex(0)

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(rehearsal.file) in record.getMessage()

    rehearsal.write("")
    pynvml.nvmlDeviceGetHandleByIndex(0)


HANGING_PROCESS = """
import sys, time
from pathlib import Path
import pynvml
from commwatch_rehearsal.simulation.library import install
from commwatch_rehearsal.simulation.node import SimulatedNode
install(SimulatedNode("h100x8", Path(sys.argv[1]), float(sys.argv[2])))
pynvml.nvmlInit()
pynvml.nvmlDeviceGetHandleByIndex(1)
print("healthy", flush=True)
pynvml.nvmlDeviceGetHandleByIndex(0)
print("ended", flush=True)
time.sleep(60)
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has just called into a driver that hangs on GPU 0, and its file of faults."""
    file = tmp_path / "faults.yaml"
    file.write_text("- {fault: driver_hang, gpu: 0, at: 0s}")
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING_PROCESS, str(file), str(time.time() - 100)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOTS},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "healthy\n"
        until(lambda: blocks_sigterm(process.pid))  # it is inside the call
        yield process, file
        process.kill()


def test_a_hanging_driver_is_deaf_to_all_but_sigkill(hanging: tuple[subprocess.Popen[str], Path]) -> None:
    """SIGTERM, SIGINT and SIGHUP stay pending; SIGKILL ends it."""
    process, _ = hanging

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    process.kill()

    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_a_hang_ends_with_its_fault(hanging: tuple[subprocess.Popen[str], Path]) -> None:
    """The call returns, and the signals of the meantime arrive."""
    process, file = hanging

    file.write_text("")
    assert process.stdout is not None
    assert process.stdout.readline() == "ended\n"
    process.terminate()

    assert process.wait(PATIENCE_SECONDS) == -signal.SIGTERM


def test_nodes_of_one_start_agree(tmp_path: Path) -> None:
    """Two objects with the same arguments give the same counters and the same probe at the same time."""
    file = tmp_path / "faults.yaml"
    file.write_text("- {fault: job, at: 10s, for: 20s}")
    nodes = [SimulatedNode("h100x8", file, STARTED_AT, lambda: STARTED_AT + 77.7) for _ in range(2)]

    first, second = (node.now()[0].epoch(77.7).gpus[3].receive[2].bytes_at(77.7) for node in nodes)
    assert first == second
    first, second = (SimulatedProbes(node).operation_seconds("all_reduce", 8, range(8), 0, 5) for node in nodes)
    assert first == second
