"""commwatch check-config: is the configuration valid, and can everything that it names be reached?"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from commwatch.children import clean_environment
from commwatch.commands.command import command, option
from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan
from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.config.web import read_web_config
from commwatch.diagnosis.headline_alerts import headline_alerts
from commwatch.diagnosis.marks.floors import read_floors
from commwatch.errors import CommwatchError, ExitCode
from commwatch.findings.api_documents import ProbesDocument, SnapshotDocument
from commwatch.probes.cycle.environment import why_no_torch
from commwatch.rehearsal import rehearsal
from commwatch.sources.base import Origin
from commwatch.state.answer import document_of
from commwatch.state.client import DaemonAbsent, ask_daemon
from commwatch.state.directory import StateDirectory, state_path
from commwatch.units import format_seconds
from commwatch.views.terminal import print_json, print_table, progress
from commwatch.workers.one_shot import NoAnswer, ask
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.sources import SOURCES, SourceRow
from commwatch.workers.start import start_python, take_kernel_log
from commwatch_exporters.listen import EndpointError, bind
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Snapshot

RUNTIME_DEADLINE_SECONDS = 20.0

_ASK_PYTHON = "import sys, importlib.util as u; print(*sys.version_info[:2], int(u.find_spec('torch') is not None))"


@dataclass(frozen=True)
class Check:
    what: str
    verdict: str
    """ok, on, off, absent (not on this node), not yet, no effect (cannot be done as it is set) or failed."""
    detail: str


@command(
    "check-config",
    "check the configuration, and with --runtime everything that it names",
    "Reads the configuration as the daemon would, and lists the sources and probes that run. With --runtime it also "
    "tries every source, the state directory, the listen addresses and the probe's library as the current user, and "
    "says which headline alerts cannot fire yet, and from when.",
    "runuser -u commwatch -- commwatch check-config --runtime < /dev/kmsg",
    option("--runtime", action="store_true", help="try everything as the current user"),
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Check and print; a wrong configuration has ended the program before."""
    thresholds = load_thresholds(config.thresholds)
    if config.simulation.preset:
        rehearsal().make_node(SimulationPlan.of(config.simulation, time.time(), Path()))  # says what is wrong with it
    checks = [Check("configuration", "ok", f"thresholds {thresholds.digest}"), *_what_runs(config)]
    if config.marks:
        checks.append(Check("marks", "ok", f"{len(read_floors(Path(config.marks)).floors)} floors"))
    if config.web.config_file:
        checks += _web_checks(Path(config.web.config_file))
    if endpoint := config.metrics.otlp.endpoint:
        from commwatch.service.otlp_sender import why_no_otlp

        problem = why_no_otlp()
        checks.append(Check("OpenTelemetry", "failed" if problem else "ok", problem or f"sent to {endpoint}"))
    if config.probes.python and not args.runtime and (problem := why_no_torch(config.probes.python)):
        checks.append(Check("probe", "failed", problem))
    if args.runtime:
        with progress("trying what the configuration names"):
            checks += [*_runtime_checks(config), *_alert_checks(config, thresholds)]
    if args.json:
        print_json([asdict(check) for check in checks])
    else:
        print_table("Check", ("what", "verdict", "detail"), [(one.what, one.verdict, one.detail) for one in checks])
    return ExitCode.FOUND if any(check.verdict == "failed" for check in checks) else ExitCode.OK


def _what_runs(config: Config) -> list[Check]:
    """The sources and probes that this configuration turns on."""
    without = {row.name: why for row in SOURCES.values() if (why := _without_path(row, config)) is not None}
    names = [name for name in config.sources.__struct_fields__ if name not in without]
    rows = {name: getattr(config.sources, name).enabled for name in names}
    found = [
        Check("sources", "on" if on else "off", ", ".join(name for name, enabled in rows.items() if enabled is on))
        for on in (True, False)
        if on in rows.values()
    ]
    found += [Check(f"source {name}", "off", why) for name, why in without.items()]
    if not config.probes.enabled or config.probes.gate == "off":
        return [*found, Check("probes", "off", "probes.enabled" if not config.probes.enabled else "probes.gate")]
    return found + [
        Check(f"probe {name}", "on", f"{probe.measure} every {format_seconds(probe.interval)}, backend {probe.backend}")
        for name, probe in config.probes.definitions.items()
    ]


def _without_path(row: SourceRow, config: Config) -> str | None:
    """Why a source that is enabled has nothing to read by the configuration alone; None where it may have."""
    section = row.section(config.sources)
    if not section.enabled or getattr(section, "paths", None) != ():
        return None
    return row.why_absent(_origin(config))


def _origin(config: Config) -> Origin:
    return Origin(Path(config.paths.sysfs), Path(config.paths.procfs), config.sources)


def _web_checks(path: Path) -> list[Check]:
    """The web configuration's requirements for clients, and its settings without effect."""
    web = read_web_config(path)
    asked = [
        "TLS" if web.tls is not None else "plain HTTP",
        f"users: {len(web.users)}" if web.users else "no password",
        f"{1 / web.rate_limit[0]:g} requests a second of each client" if web.rate_limit else "any rate",
    ]
    notes = [Check("web configuration", "no effect", note) for note in web.notes]
    return [Check("web configuration", "ok", ", ".join(asked)), *notes]


def _runtime_checks(config: Config) -> list[Check]:
    if _daemon_runs(config):
        checks = [Check("state directory and listen addresses", "ok", "held by the daemon that runs now")]
    else:
        checks = [
            _check("state directory", lambda: _state(config)),
            _check("listen addresses", lambda: _listen(config)),
        ]
    if config.textfile.path:
        checks.append(_check("textfile", lambda: _textfile(config)))
    kernel_log = take_kernel_log()
    for row in SOURCES.values():
        if row.section(config.sources).enabled and not row.completes and _without_path(row, config) is None:
            checks.append(asyncio.run(_source(config, row, kernel_log)))
    if config.probes.enabled and config.probes.gate != "off":
        checks.append(asyncio.run(_interpreter(config.probes.python)))
    return checks


async def _interpreter(python: str) -> Check:
    """Whether ranks find torch; another interpreter than ours is asked."""
    if problem := why_no_torch(python):
        return Check("probe", "failed" if python else "absent", problem)
    if not python:
        return Check("probe", "ok", "PyTorch is installed")
    try:
        answer = await ask((python, "-c", _ASK_PYTHON), clean_environment(os.environ), RUNTIME_DEADLINE_SECONDS)
        major, minor, torch = map(int, answer.output.split())
    except NoAnswer as error:
        return Check("probe", "failed", f"probes.python: {python}: {error}")
    except ValueError:
        return Check("probe", "failed", f"probes.python: {python} is no Python: {answer.last_error}")
    if (major, minor) < (3, 10):
        return Check("probe", "failed", f"probes.python: {python} is Python {major}.{minor}; ranks need 3.10 or later")
    if not torch:
        return Check("probe", "failed", f"probes.python: {python} has no PyTorch")
    return Check("probe", "ok", f"{python}: Python {major}.{minor} with PyTorch")


def _alert_checks(config: Config, thresholds: Thresholds) -> list[Check]:
    """By what the daemon that runs now exports."""
    state = state_path(config)
    try:
        snapshot = document_of(ask_daemon(state, "snapshot"), SnapshotDocument)
        probes = document_of(ask_daemon(state, "probes"), ProbesDocument)
    except CommwatchError as error:
        return [Check("headline alerts", "absent", f"not asked: {error}")]
    found = headline_alerts(snapshot.node, probes.probes, config, thresholds)
    return [Check(f"alert {one.name}", one.verdict, one.detail) for one in found]


def _daemon_runs(config: Config) -> bool:
    try:
        ask_daemon(state_path(config), "inventory")
    except DaemonAbsent:
        return False
    except CommwatchError:
        return True  # it is there, although it does not answer us
    return True


def _check(what: str, try_it: Callable[[], str]) -> Check:
    try:
        return Check(what, "ok", try_it())
    except (CommwatchError, EndpointError) as error:
        return Check(what, "failed", str(error))


def _state(config: Config) -> str:
    state = StateDirectory(state_path(config))
    state.open()
    state.close()
    return str(state.path)


def _listen(config: Config) -> str:
    if config.web.systemd_socket:
        return "systemd listens (commwatch.socket); not tried"
    for address in config.web.listen_addresses:
        for listening in bind(address):
            listening.close()
    return ", ".join(config.web.listen_addresses) or "none: no port is opened"


def _textfile(config: Config) -> str:
    folder = Path(config.textfile.path).parent
    if not folder.is_dir():
        raise CommwatchError(f"{folder}: there is no such directory; it is that of node_exporter")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CommwatchError(f"{folder}: cannot be written; see docs/using/textfile.md")
    return config.textfile.path


async def _source(config: Config, row: SourceRow, kernel_log: int | None) -> Check:
    what = f"source {row.name}"
    if config.simulation.preset:
        return Check(what, "ok", f"simulated ({config.simulation.preset}); not tried")
    absent = row.why_absent(_origin(config))
    if absent is not None:
        return Check(what, "absent", absent)
    launch = partial(start_python, kernel_log=kernel_log) if row.name == "kernel_log" else start_python
    settings, deadline = ReaderSettings.of(config, [row], None, launch=launch), RUNTIME_DEADLINE_SECONDS
    reader = Reader(replace(settings, deadline=deadline, start_deadline=deadline))
    try:
        collected = await reader.now(row.collectors[0].name)
    finally:
        await reader.stop(2)
    if collected.absences:
        first = collected.absences[0]
        return Check(what, "failed", f"{first.device}: ".lstrip(": ") + _advice(first.reason, first.detail))
    devices = sorted(device for device in collected.blocks if device)
    daemon = Node(Snapshot(collected.blocks.values())).daemon
    if daemon.nccl_log_files is not None:
        return Check(what, "ok", f"logs that can be followed: {daemon.nccl_log_files}")
    if daemon.nccl_inspector_files is not None:
        return Check(what, "ok", f"files that can be followed: {daemon.nccl_inspector_files}")
    if row.name == "nccl_settings":
        return Check(what, "ok", "the node can be read; the driver reports which processes to audit")
    return Check(what, "ok", f"{len(devices)} read: {', '.join(devices)}" if devices else "nothing of its kind is here")


def _advice(reason: str, detail: str) -> str:
    if reason != "no_permission":
        return detail
    return (
        f"{detail}; user {os.environ.get('USER') or os.geteuid()} lacks a privilege: "
        "see the table of permissions in docs/using/install.md"
    )
