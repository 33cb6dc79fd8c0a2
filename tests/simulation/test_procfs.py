"""The procfs tree of a simulated node."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pynvml

from simulation.harness import Rehearsal

Rehearse = Callable[..., Rehearsal]


def boot_id(rehearsal: Rehearsal, root: Path, time: float) -> str:
    rehearsal.now = time
    rehearsal.node.write_procfs(root)
    return (root / "sys/kernel/random/boot_id").read_text()


def processes(rehearsal: Rehearsal, root: Path, time: float) -> dict[str, bytes]:
    """Command line by name; the names as the kernel cuts them."""
    rehearsal.now = time
    rehearsal.node.write_procfs(root)
    folders = [path for path in root.iterdir() if path.name.isdecimal()]
    return {(path / "comm").read_text().rstrip("\n"): (path / "cmdline").read_bytes() for path in folders}


def test_a_boot_has_its_own_identity(rehearse: Rehearse, root: Path, tmp_path: Path) -> None:
    """It holds until the next boot, and is the same for every process of the node."""
    rehearsal = rehearse("h100x8", "- {fault: gpu_missing, gpu: 2, at: 200s, for: 60s}")
    first = boot_id(rehearsal, root, 100.0)

    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n", first)
    assert boot_id(rehearsal, root, 199.9) == first
    other = tmp_path / "other"
    other.mkdir()
    assert boot_id(Rehearsal(other, "h100x8"), other, 150.0) == first
    boots = {first, boot_id(rehearsal, root, 200.0), boot_id(rehearsal, root, 260.0)}
    assert len(boots) == 3


def test_services_and_jobs_are_processes(rehearse: Rehearse, root: Path) -> None:
    """The fabric manager where there are NVSwitches, the persistence daemon, and the job while it runs."""
    rehearsal = rehearse("h100x8", "- {fault: job, gpu: 1, at: 150s, for: 10s}")

    idle = processes(rehearsal, root, 100.0)
    assert set(idle) == {"systemd", "kthreadd", "nv-fabricmanage", "nvidia-persiste"}
    assert idle["kthreadd"] == b""
    assert idle["nv-fabricmanage"] == b"/usr/bin/nv-fabricmanager\0-c\0/usr/share/nvidia/nvswitch/fabricmanager.cfg\0"
    assert processes(rehearsal, root, 150.0)["python3"].startswith(b"python3\0/home/user/train.py\0")
    assert (root / "4100001").is_dir()
    assert set(processes(rehearsal, root, 160.0)) == set(idle)


def test_a_rank_of_the_job_shows_its_settings_and_is_another_process_with_others(driver: Rehearse, root: Path) -> None:
    """As after a restart of the job: the old process is gone. The driver lists the same processes, and so does a second
    process of ours that reads the tree."""
    faults = "- {fault: job, at: 100s}\n- {fault: nccl_setting, at: 150s, gpu: 1, variable: NCCL_ALGO, value: Tree}\n"
    rehearsal = driver("a10x2", faults)

    def look(time: float) -> list[dict[str, str]]:
        rehearsal.now = time
        rehearsal.node.write_procfs(root)
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
        listed = [process.pid for handle in handles for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        here = {path.name for path in root.iterdir() if path.name.startswith("41")}
        assert here == {str(pid) for pid in listed}
        return [dict(one.split("=", 1) for one in _environment(root, pid)) for pid in listed]

    before = look(120.0)
    assert [(one["RANK"], one["WORLD_SIZE"], "NCCL_ALGO" in one) for one in before] == [
        ("0", "2", False), ("1", "2", False),
    ]  # fmt: skip
    after = look(160.0)
    assert [one.get("NCCL_ALGO") for one in after] == [None, "Tree"]
    rehearsal.node.write_procfs(root, only_missing=True)
    assert look(161.0) == after


def _environment(root: Path, process: int) -> list[str]:
    return (root / f"{process}/environ").read_text().rstrip("\0").split("\0")


def test_a_service_stops_and_comes_back_as_another_process(rehearse: Rehearse, root: Path) -> None:
    """Its folder is gone meanwhile; the other service is not touched."""
    rehearsal = rehearse("h100x8", "- {fault: service_stopped, service: nv-fabricmanager, at: 150s, for: 30s}")
    before = processes(rehearsal, root, 149.9)
    numbers = {path.name for path in root.iterdir()}

    assert before.keys() - processes(rehearsal, root, 150.0).keys() == {"nv-fabricmanage"}
    assert processes(rehearsal, root, 180.0) == before
    assert len({path.name for path in root.iterdir()} - numbers) == 1


def test_processes_of_an_earlier_run_are_gone(rehearse: Rehearse, root: Path) -> None:
    """A tree that was left behind does not keep a job alive."""
    (root / "4100000").mkdir()
    (root / "4100000/comm").write_text("python3\n")

    assert "python3" not in processes(rehearse("h100x8"), root, 100.0)


def test_the_driver_gives_its_version(rehearse: Rehearse, root: Path) -> None:
    """As /proc/driver/nvidia/version does."""
    rehearse("h100x8").node.write_procfs(root)

    lines = (root / "driver/nvidia/version").read_text().splitlines()
    assert re.fullmatch(
        r"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580\.95\.05  Release Build  \(.*\)", lines[0]
    )
    assert lines[1].startswith("GCC version:")
