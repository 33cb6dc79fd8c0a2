"""The pieces of a bundle that are read from the machine itself: topology, programs, files of /proc, logs."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from commwatch.children import clean_environment, find_program, own_module
from commwatch.config.settings import Config
from commwatch.diagnosis.bundle import Found, LeftOut, Piece, as_json
from commwatch.diagnosis.known import Known
from commwatch.errors import CommwatchError
from commwatch.findings.rules.daemon import OF_JOB_FILES
from commwatch.lines import plain
from commwatch.workers.one_shot import Answer, NoAnswer, ask
from commwatch_exporters.node.model import Worker

_MOST_BYTES = 4 * 2**20
"""Of one piece; nvidia-smi -q of eight GPUs prints 0.3 MB."""
_FILE_SECONDS = 5.0
_LOG_SECONDS = 30.0
_SYSTEM_FOLDERS = "/usr/sbin:/sbin"
"""Where lspci and ibstat lie on some systems; not in the path of every user."""

Tell: TypeAlias = Callable[[str], None]
"""Called with what is collected next."""


class Program(NamedTuple):
    """A program whose output a vendor asks for."""

    name: str
    """Of the file in the bundle."""
    command: tuple[str, ...]
    deadline: float
    """Seconds."""
    opens: str = ""
    """The driver that it opens; empty for none."""
    keep: Callable[[str], str] = str
    """The function that selects the part of its output to keep."""


def machine_pieces(config: Config, known: Known, tell: Tell) -> Iterator[Found]:
    """All pieces from the machine; for a simulated node only its topology."""
    held = yield from _topology(config, known, tell)
    if known.snapshot.simulated is not None:
        reason = "the node is simulated: nothing of the machine that it runs on is in here"
        yield LeftOut("system/, programs/ and logs/", "this machine", reason)
        return
    yield from _files(Path(config.paths.procfs))
    yield from program_pieces(PROGRAMS, held, tell)
    yield _kernel_log(config, tell)
    yield from _job_logs(config, tell)


def why_driver_is_left_alone(known: Known) -> str:
    """Why no program may open a driver now; empty where one may."""
    if known.snapshot.maintenance is not None:
        return f"the daemon is paused ({known.snapshot.maintenance}), so that the driver is free"
    stuck = any(flag for worker, flag in known.facts.each(Worker.stuck) if worker.name != OF_JOB_FILES)
    return "a process of the daemon is stuck in the driver already" if stuck else ""


# --- topology ---


def _topology(config: Config, known: Known, tell: Tell) -> Generator[Found, None, str]:
    """Gives back why no program may open a driver after it; empty where one may."""
    name, source = "topology.txt and topology.json", "commwatch topology"
    if reason := why_driver_is_left_alone(known):
        yield LeftOut(name, source, reason)
        return reason
    from commwatch.findings.slow_pairs import measured_on
    from commwatch.node.topology.document import document
    from commwatch.node.topology.measured import Measured
    from commwatch.node.topology.text import topology_lines
    from commwatch.workers.by_hand import read_topology

    tell("the topology")
    try:
        topology, problems = read_topology(config)
    except CommwatchError as error:
        yield LeftOut(name, source, str(error))
        return ""
    matrix = known.matrix
    measured: Measured | str = "nothing is known"
    if matrix is not None:
        measured = measured_on(topology, matrix, known.snapshot.time, known.thresholds)
    simulated = known.snapshot.simulated is not None
    made = document(topology, simulated=simulated, problems=problems, measured=measured)
    text = [*map(plain, topology_lines(topology, measured)), *(f"not read: {problem}" for problem in problems)]
    note = "the simulated node without its faults" if simulated and not config.simulation.faults else ""
    yield Piece(name="topology.txt", source=source, text="\n".join(text) + "\n", note=note)
    yield Piece(
        name="topology.json", source=f"{source} --json", note=note,
        text=as_json(made),
    )  # fmt: skip
    return _silent_driver([topology.driver_note, *problems])


def _silent_driver(problems: Iterable[str]) -> str:
    """Whether a child was left in the driver just now, by what could not be read and why."""
    hung = [problem for problem in problems if re.search(r"(?:^|: )deadline: ", problem)]
    return f"the driver did not answer just now: {hung[0]}" if hung else ""


# --- programs and files ---


def without_process_names(text: str) -> str:
    """The output of ``nvidia-smi -q`` without the names of processes, which reveal the users' work."""
    return re.sub(r"(?m)^(\s+(?:Process )?[Nn]ame\s*:).*$", r"\1 (left out)", text)


_LSPCI_CLASSES: Final = ("02", "03", "0604", "0680", "12")
"""Network, display, PCI bridge, other bridge (NVSwitch), accelerator."""


def gpus_adapters_and_bridges(text: str) -> str:
    """The blocks of ``lspci -nn`` that are about GPUs, network adapters and bridges."""
    kept = []
    for block in text.split("\n\n"):
        found = re.search(r"^\S+ .*?\[([0-9a-f]{4})\]: ", block)
        if found is not None and found[1].startswith(_LSPCI_CLASSES):
            kept.append(block.strip("\n"))
    return "\n\n".join(kept) + "\n" if kept else text


PROGRAMS: Final = (
    Program("nvidia-smi-q", ("nvidia-smi", "-q"), 30.0, "NVIDIA", without_process_names),
    Program("nvidia-smi-topo-m", ("nvidia-smi", "topo", "-m"), 30.0, "NVIDIA"),
    Program("nvidia-smi-nvlink-s", ("nvidia-smi", "nvlink", "-s"), 30.0, "NVIDIA"),
    Program("ibstat", ("ibstat",), 10.0, "RDMA"),
    Program("lspci-vvv", ("lspci", "-D", "-nn", "-vvv"), 20.0, "", gpus_adapters_and_bridges),
)


def program_pieces(programs: Sequence[Program], held: str, tell: Tell) -> Iterator[Found]:
    """Their output; a driver that left one of them without an answer is not asked by another one."""
    environment, silent = program_environment(os.environ), dict[str, str]()
    for program in programs:
        source = " ".join(program.command)
        reason = silent.get(program.opens, "") or (held if program.opens else "")
        if reason:
            yield LeftOut(f"programs/{program.name}.txt", source, reason)
            continue
        if find_program(program.command[0], _SYSTEM_FOLDERS) is not None:
            tell(f"{source} (up to {program.deadline:g} s)")
        found = _output(f"programs/{program.name}.txt", source, program, environment)
        if isinstance(found, NoAnswer):
            reason = "is not installed" if found.missing else str(found)
            yield LeftOut(f"programs/{program.name}.txt", source, reason)
            if program.opens and not found.missing:
                silent[program.opens] = f"{program.command[0]} gave no answer before"
        else:
            yield found


def program_environment(own: Mapping[str, str]) -> dict[str, str]:
    """A clean environment whose path has the system's folders."""
    clean = clean_environment(own)
    return {**clean, "PATH": f"{clean['PATH']}:{_SYSTEM_FOLDERS}"}


def run_program(command: Sequence[str], environment: Mapping[str, str], deadline: float, limit: int) -> Answer:
    """Run what may open a driver, and so gets no signal; see ``ask``. Blocks."""
    return asyncio.run(ask(command, environment, deadline, limit=limit, together=True, spare=True))


def _output(name: str, source: str, program: Program, environment: Mapping[str, str]) -> Piece | NoAnswer:
    try:
        answer = run_program(program.command, environment, program.deadline, _MOST_BYTES)
    except NoAnswer as error:
        return error
    failed = f"exit code {answer.code}" if answer.code else ""
    note = f"cut after {_MOST_BYTES} bytes" if answer.is_cut else failed
    return Piece(name=name, source=source, text=program.keep(answer.output), note=note)


def _files(procfs: Path) -> Iterator[Found]:
    """Read by a child, as whatever a driver answers: the last one is NVIDIA's."""
    wanted = {
        "proc-version": procfs / "version",
        "proc-modules": procfs / "modules",
        "os-release": Path("/etc/os-release"),
        "nvidia-driver-version": procfs / "driver/nvidia/version",
    }
    environment = program_environment(os.environ)
    for name, path in wanted.items():
        program = Program(name, ("cat", str(path)), _FILE_SECONDS)
        found = _output(f"system/{name}.txt", str(path), program, environment)
        if isinstance(found, NoAnswer):
            yield LeftOut(f"system/{name}.txt", str(path), str(found))
        elif found.note:
            yield LeftOut(found.name, found.source, found.text.strip() or found.note)
        else:
            yield found


# --- logs ---


def _kernel_log(config: Config, tell: Tell) -> Found:
    name, path = "logs/kernel.txt", config.sources.kernel_log.path
    if not config.sources.kernel_log.enabled:
        return LeftOut(name, path, "sources.kernel_log is disabled in the configuration")
    tell("the kernel log")
    command = own_module("commwatch.diagnosis.kernel_lines", path)
    try:
        answer = run_program(command, clean_environment(os.environ), _FILE_SECONDS, _MOST_BYTES)
    except NoAnswer:
        return LeftOut(name, path, f"gave no answer in {_FILE_SECONDS:g} s")
    if answer.code and not answer.is_cut:
        return LeftOut(name, path, answer.output.strip()[-200:])
    return Piece(
        name=name, source=f"{path}: lines of GPUs, PCIe and network adapters", text=answer.output,
        note=f"cut after {_MOST_BYTES} bytes" if answer.is_cut else "",
    )  # fmt: skip


def _job_logs(config: Config, tell: Tell) -> Iterator[Found]:
    """The incidents in the configured logs of jobs, without their text."""
    settings, name = config.sources.nccl_logs, "logs/jobs.json"
    source = "the logs of sources.nccl_logs.paths, as commwatch diagnose --log reports them"
    if not settings.enabled or not settings.paths:
        yield LeftOut(name, source, "no log is configured")
        return
    tell(f"the logs of jobs (up to {_LOG_SECONDS:g} s)")
    command = own_module("commwatch", "diagnose", "--json", "--log", *settings.paths)
    try:
        answer = run_program(command, clean_environment(os.environ), _LOG_SECONDS, 4 * _MOST_BYTES)
    except NoAnswer:
        yield LeftOut(name, source, f"they are not read in {_LOG_SECONDS:g} s")
        return
    text = incidents_without_texts(answer.output)
    if text is None:
        yield LeftOut(name, source, f"they could not be read (exit code {answer.code})")
    else:
        yield Piece(name=name, source=source, text=text)


_TAKEN_OF_AN_INCIDENT = ("category", "side", "certain", "happened", "next_step", "began", "ranks", "counts")


def incidents_without_texts(text: str) -> str | None:
    """The incidents and their counts from the output of ``diagnose --log --json``; None if the output has another
    form."""
    try:
        answer = msgspec.json.decode(text, type=dict)
        incidents = [{key: one[key] for key in _TAKEN_OF_AN_INCIDENT} for one in answer["incidents"]]
        logs = [{key: one[key] for key in ("lines", "told", "is_cut")} for one in answer["logs"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return as_json({"logs": logs, "incidents": incidents})
