"""The processes of the job on a simulated node: one for each GPU, a rank of one program under torchrun."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch_rehearsal.simulation.hardware import Hardware

FIRST_JOB_PROCESS = 4_100_000
"""Process id of the job on the first GPU of the preset, before it is started again."""
COMMAND = "python3 /home/user/train.py --data=/scratch/user/corpus"
NCCL_LIBRARY = "/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.7"
"""The library that the processes have loaded."""
USER_ID = 1000
CGROUP = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"
"""As of a step of Slurm on cgroup v2."""
_GPUS_MAX = 128
"""Between the process ids of a process and of the one that follows it."""
_RESTARTS_MAX = 700
"""Ids end at 4,194,304; then they begin again, as the kernel's do."""


def job_process(hardware: Hardware, place: int, time: float) -> int:
    """Id of the process of the job on a GPU, should it run at a time."""
    return FIRST_JOB_PROCESS + place + _GPUS_MAX * (hardware.timeline.restarts(place, time) % _RESTARTS_MAX)


def job_environment(hardware: Hardware, place: int, time: float) -> Mapping[str, str]:
    """The environment of that process: torchrun's variables of each rank, a log level, and the additions of faults."""
    gpus = len(hardware.preset.gpus)
    environment = {
        "HOME": "/home/user",
        "RANK": str(place),
        "LOCAL_RANK": str(place),
        "WORLD_SIZE": str(gpus),
        "LOCAL_WORLD_SIZE": str(gpus),
        "MASTER_ADDR": "node1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "run-of-user",
        "NCCL_DEBUG": "WARN",
    }
    for fault in hardware.timeline.active(place, time):
        if fault.kind == "nccl_setting":
            environment[fault.words["variable"]] = fault.words["value"]
    return environment
