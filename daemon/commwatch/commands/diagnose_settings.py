"""commwatch diagnose --settings: NCCL settings of files and processes, compared with this machine, without values."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

import msgspec

from commwatch.config.settings import Config
from commwatch.errors import CommwatchError, ExitCode, UsageError
from commwatch.jobs.settings.records import BETWEEN_NODES, WITHIN_NODE, SettingRemark
from commwatch.lines import HEADING, WIDTH, Line, printable
from commwatch.probes.by_hand.trial import SettingTrial, known_trials
from commwatch.units import format_bytes
from commwatch.views.terminal import progress, show

if TYPE_CHECKING:
    from commwatch.jobs.settings.facts import NodeFacts

SCHEMA: Literal["commwatch-settings-audit/1"] = "commwatch-settings-audit/1"
_DEADLINE_SECONDS = 10.0
"""For what is read of the machine's network."""
_MOST_BYTES = 4 * 2**20
"""Longer than any environment that the kernel takes with the usual limit of the stack."""
_MOST_DIGITS = 10
"""Of the number of a process; the kernel gives seven at most."""
_LINE = re.compile(r"(?:export |declare -x )?([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_STYLES = {"harmful": "red", "suspicious": "yellow", "useless": "yellow"}

_MOST_TRIALS = 3
"""Of one setting that are shown."""
_OF_FILES = frozenset({"malformed_line", "file_not_read"})
"""Remarks on a file itself, not on a variable."""

Kind = Literal["environment", "nccl.conf", "processes"]


class ToldRemark(SettingRemark, frozen=True):
    """A remark with what is measured of its setting, by hand and on this node."""

    trials: tuple[SettingTrial, ...] = ()
    """Of this setting alone, the newest first."""
    measure: str = ""
    """The command that measures it; empty where it was measured, or where no probe of one node uses it."""


class AuditedFile(msgspec.Struct, frozen=True):
    """One file, or all processes that were named."""

    name: str
    """Of the file; of processes their ids."""
    kind: Kind
    notes: tuple[ToldRemark, ...]
    """Most severe first."""


class SettingsAnswer(msgspec.Struct, frozen=True):
    """The answer about files and processes."""

    schema: str
    simulated: str | None
    """The simulated node that they are compared with; None on a real machine."""
    held_against: str
    """The known facts about this machine, in words."""
    files: tuple[AuditedFile, ...]


def run_settings(names: Sequence[str], config: Config, *, as_json: bool) -> int:
    """Audit files and processes, and print the findings.

    Args:
        names: files in the form of nccl.conf, whose names end in ``.conf``, and environments: what ``env``, ``env -0``
            or ``export -p`` printed; ``-``: an environment from the standard input. A number is a process.
        config: which machine they are compared with.

    Returns:
        The exit code: 0 where there are at most notes, 1 where a setting harms, may harm or does nothing.

    Raises:
        UsageError: a file or process cannot be read.
    """
    pids = [int(name) for name in names if _is_process(name)]
    given = [(name, _read(name)) for name in names if not _is_process(name)]  # before what takes longer
    with progress("reading the node"):
        node, held_against = _node(config)
    trials = known_trials(config)
    files = tuple(_audited(name, data, node, trials) for name, data in given)
    if pids:
        files = (*files, _processes(pids, node, Path(config.paths.procfs), trials))
    answer = SettingsAnswer(SCHEMA, config.simulation.preset or None, held_against, files)
    show(answer, answer_lines(answer), as_json=as_json)
    harms = any(note.severity != "note" for file in files for note in file.notes)
    return ExitCode.FOUND if harms else ExitCode.OK


def _told(notes: Sequence[SettingRemark], trials: Sequence[SettingTrial]) -> tuple[ToldRemark, ...]:
    """The remarks with the trials of their settings; the values of trials are the operator's own."""
    told = []
    for note in notes:
        own = [one for one in reversed(trials) if one.settings.keys() == {note.variable}]
        command = "" if own or note.code not in WITHIN_NODE else f"commwatch probe --with {note.variable}=VALUE"
        told.append(ToldRemark(**msgspec.structs.asdict(note), trials=tuple(own[:_MOST_TRIALS]), measure=command))
    return tuple(told)


def _is_process(name: str) -> bool:
    """Whether a name is a number of the length that the kernel gives processes."""
    return name.isdecimal() and len(name) <= _MOST_DIGITS


def _read(name: str) -> bytes:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}; name a file that can be read") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{name}: longer than 4 MiB, which is no environment; name another file")
    return data


def _node(config: Config) -> tuple[NodeFacts, str]:
    """The facts that settings are compared with, and the same in words. Sources that may hang are read by other
    processes."""
    from commwatch.jobs.settings.facts import NodeFacts
    from commwatch.jobs.settings.topology_facts import node_facts
    from commwatch.workers.by_hand import ask_network, read_topology, simulated_files

    try:
        topology, _ = read_topology(config)
        if not topology.gpus:
            return NodeFacts(), "this machine has no GPU: only names and values were checked"
        with simulated_files(config) as simulation:
            sysfs, procfs = config.paths.sysfs, config.paths.procfs
            if simulation is not None:
                sysfs, procfs = simulation.sysfs, simulation.procfs
            facts = node_facts(topology, asyncio.run(ask_network(sysfs, procfs, _DEADLINE_SECONDS)))
    except CommwatchError as error:
        return NodeFacts(), f"this machine was not read ({error}): only names and values were checked"
    ports = "RDMA ports not known" if facts.rdma_ports is None else f"{len(facts.rdma_ports)} RDMA ports"
    driver = "" if topology.driver_read else "; the driver was not read, so NVLink is not known"
    return facts, f"compared with this machine: {facts.gpus} GPUs, {ports}{driver}"


def _audited(name: str, data: bytes, node: NodeFacts, trials: Sequence[SettingTrial]) -> AuditedFile:
    from commwatch.jobs.settings.audit import audit_environment, audit_file
    from commwatch.jobs.settings.names import kept_name
    from commwatch.jobs.settings.process_environment import MOST_SETTINGS

    if name.endswith(".conf"):
        try:
            audit = audit_file(Path(name), node)
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror}; name a file that can be read") from error
        return AuditedFile(printable(name), "nccl.conf", _told([*map(_of_named_file, audit.remarks)], trials))
    environment = parse_environment_text(data)
    if not environment:
        raise UsageError(f"{name}: no line NAME=value in it; give what env prints, or a file named *.conf")
    if sum(map(kept_name, environment)) > MOST_SETTINGS:
        raise UsageError(f"{name}: more than {MOST_SETTINGS} settings, as no job has; name another file")
    audit = audit_environment(environment, node)
    return AuditedFile(printable(name), "environment", _told(audit.remarks, trials))


def _processes(pids: Sequence[int], node: NodeFacts, procfs: Path, trials: Sequence[SettingTrial]) -> AuditedFile:
    """All processes together, since their settings may differ between the ranks of a job.

    Raises:
        UsageError: one of them cannot be read, or has ended: what is not read is not clean.
    """
    from commwatch.jobs.settings.audit import audit_processes

    audit = audit_processes(pids, node, procfs)
    if audit.unread:
        why = ", ".join(f"{one.pid}: {one.reason.replace('_', ' ')}" for one in audit.unread)
        raise UsageError(f"not read: process {why}; ask as its user, or as root")
    if audit.read < len(set(pids)):
        raise UsageError(f"{len(set(pids)) - audit.read} of these processes not found; name others")
    return AuditedFile(", ".join(map(str, pids)), "processes", _told(audit.remarks, trials))


def _of_named_file(remark: SettingRemark) -> SettingRemark:
    """Of a file that was named itself, whether or not any NCCL_CONF_FILE names it too."""
    return msgspec.structs.replace(remark, variable="this file") if remark.code in _OF_FILES else remark


def parse_environment_text(data: bytes) -> dict[str, str]:
    """An environment as ``env``, ``env -0``, ``export -p`` or the kernel writes it; of equal names the first counts.

    A line that sets nothing belongs to the value before it, and is left out.
    """
    text = data.decode("utf-8", "backslashreplace")
    found: dict[str, str] = {}
    for line in text.split("\0") if "\0" in text else text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        name, value = match.groups()
        found.setdefault(name, value if line.startswith(f"{name}=") else _unquoted(value))
    return found


def _unquoted(value: str) -> str:
    """A value as the shell quotes it."""
    try:
        return "".join(shlex.split(value))
    except ValueError:  # the rest of it is on the next line
        return value.strip("\"'")


def answer_lines(answer: SettingsAnswer) -> Iterator[Line]:
    from commwatch.jobs.settings.judge import WHERE

    files = {origin: where for origin, where in WHERE.items() if origin != "environment"}
    if answer.simulated is not None:
        yield [(f"Simulated node {answer.simulated}: none of this is real.", "")]
        yield []
    yield [(f"{answer.held_against[0].upper()}{answer.held_against[1:]}.", "dim")]
    for file in answer.files:
        yield []
        yield [(file.name, HEADING), (f" ({file.kind})", "dim")]
        if not file.notes:
            yield [("  Nothing to say.", "green")]
        for note in file.notes:
            where = f", in {files[note.origin]}" if file.kind != "nccl.conf" and note.origin in files else ""
            yield [
                (f"  {note.severity}: ", _STYLES.get(note.severity, "dim")),
                (f"{note.variable}{where} [{note.code}]", "bold"),
                (f" fallback: {printable(note.fallback)}" if note.fallback else "", "dim"),
            ]
            yield from _paragraph(note.words)
            for trial in note.trials:
                yield from _paragraph(f"measured: {trial_words(trial)}")
            yield from _paragraph(f"next: {_next(note)}")
            if note.pids:
                yield from _paragraph(f"of: {', '.join(map(str, note.pids))}")


def _next(note: ToldRemark) -> str:
    """The next step; a setting that affects speed is recommended only by measurements."""
    if note.trials and note.code in WITHIN_NODE:
        words = {gain.word for gain in note.trials[0].gains}
        if words == {"same"}:
            return f"It makes no difference that was measured here. {note.next_step}"
        if "slower" not in words:
            return "Keep it where the job has the value that was measured: it is faster here."
        if "faster" in words:
            return "Faster for some sizes and slower for others: keep it only where the job's own sizes gain."
        return note.next_step
    if note.measure:
        return f"Measure what it gains here, with the job's own value: {note.measure}. Without a gain: {note.next_step}"
    if note.code in BETWEEN_NODES:
        return (
            f"{note.next_step} No probe of one node uses it: what it gains, all_reduce_perf of nccl-tests over two "
            "nodes says, with and without it."
        )
    return note.next_step


def trial_words(trial: SettingTrial) -> str:
    """``NCCL_ALGO=Ring, 2026-11-23: all_reduce 64 MiB 13 % slower with it``."""
    settings = " ".join(f"{name}={value}" for name, value in trial.settings.items())
    day = datetime.fromtimestamp(trial.taken_at, tz=timezone.utc).strftime("%Y-%m-%d")
    gains = ", ".join(
        f"{one.operation} {format_bytes(one.size_bytes)} "
        + ("the same" if one.word == "same" else f"{abs(one.gain_percent):.0f} % {one.word} with it")
        for one in trial.gains
    )
    return f"{settings}, {day}: {gains}"


def _paragraph(text: str) -> Iterator[Line]:
    for line in wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    "):
        yield [(line, "")]
