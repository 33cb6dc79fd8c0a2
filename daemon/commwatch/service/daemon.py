"""The daemon: built here, and run until TERM or INT; answers signals, systemd and the control socket."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from commwatch import __version__
from commwatch.cluster.between_nodes import Taken
from commwatch.cluster.node_report import CHECK_OPERATION, OPERATION
from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan, node_name
from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.diagnosis.health.counts import read_counts
from commwatch.errors import CommwatchError, ListenError
from commwatch.footprint import share_one_heap, spare_the_garbage_collector
from commwatch.node.run import TEND_SECONDS
from commwatch.node.starvation import Starvation
from commwatch.service.api import Answers
from commwatch.service.engine import Engine
from commwatch.service.instruments import Instruments
from commwatch.service.log import configure_logging
from commwatch.service.notify import notify
from commwatch.service.otlp_sender import OtlpSender
from commwatch.service.page import describe
from commwatch.service.scheduling import ClockSteps, Scheduler, after_readers
from commwatch.service.textfile_writer import TextfileWriter
from commwatch.service.web_access import LOOK_SECONDS as WEB_LOOK_SECONDS
from commwatch.service.web_access import WebAccess, url_of, who_reads
from commwatch.state.control import ControlServer
from commwatch.state.directory import StateDirectory, state_path
from commwatch.state.maintenance import MaintenanceFile
from commwatch.views.node_page.page import NodePage
from commwatch.views.node_page.records import Status
from commwatch.views.node_page.runbooks import runbook_pages
from commwatch.workers.start import Spares
from commwatch_exporters.listen import EndpointError, Peer, passed_sockets
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.snapshot import Snapshot
from commwatch_exporters.web import Endpoint

log = structlog.get_logger("commwatch.service")

HEARTBEAT_SECONDS = TEND_SECONDS
PROGRESS_PATIENCE_SECONDS = 15.0
"""A job that has been due for longer and has not had its turn: the scheduler does not run."""
WHOLE_PATIENCE_SECONDS = 120.0
"""A job of ``VITAL`` that has not come to its end for longer is no life. It may wait for readers that end, twice 30 s
on a starved node."""
LOOK_SECONDS = 10.0
"""Seconds between two self-measurements of the daemon and evaluations of the rules."""
STOP_SECONDS = 4.5

# Jobs that are due at one moment start in the order of their names: readings are taken before they are evaluated.
HOUSEKEEPING, LOOK, TEXTFILE, OTLP, WEB_FILES = "housekeeping", "look", "textfile", "otlp", "web_files"
VITAL = (HOUSEKEEPING, LOOK)
"""Without these the daemon watches nothing."""


class Daemon:
    """The part that lives from the start of the process to its end; an ``Engine`` depends on the configuration.

    Args:
        config: its configuration.
        reload_config: reads it again.
        spares: become its workers.
        kernel_log: see ``take_kernel_log``.
        ends_after: seconds after which a daemon that is ready ends by itself, as a recording that is played once; None:
            it does not.
    """

    def __init__(
        self, config: Config, reload_config: Callable[[], Config], spares: Spares, kernel_log: int | None = None,
        ends_after: float | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        """In force."""
        self._spares = spares
        self._kernel_log = kernel_log
        self._ends_after = ends_after
        self._reload_config = reload_config
        self._instruments = Instruments()
        self._scheduler = Scheduler(self._instruments.run_missed)
        self._clock_steps = ClockSteps()
        self._starvation = Starvation(Path(config.paths.procfs))
        self._state = StateDirectory(state_path(config))
        self._maintenance_file = MaintenanceFile(self._state.path)
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()
        self._ready = False
        self._web: WebAccess | None = None
        self._metrics = MetricsPage(self.snapshot, self._instruments.registry)
        self._textfile = TextfileWriter(self._metrics.textfile)
        self._otlp = OtlpSender(self._metrics.families)
        self._changing = asyncio.Lock()
        self._reloading: asyncio.Task[None] | None = None
        self._watches = True
        """Whether there is an engine that runs; a defect of ours may have kept one from taking over from another."""
        self.engine: Engine
        """Of the configuration in force."""
        self._answers: Answers
        self._endpoint: Endpoint

    async def run(self) -> int:
        """Run until TERM or INT.

        Raises:
            CommwatchError: what the daemon needs cannot be had: state directory, thresholds, listen address.
        """
        share_one_heap()
        self._state.open()
        try:
            self._handle_signals()
            if self.config.simulation.preset:
                from commwatch.service.simulated import remove_earlier

                remove_earlier(self._state, with_start=self._ends_after is not None)
            prepared = self._prepare(self.config)
            spare_the_garbage_collector()
            self.engine = self._build(self.config, prepared)
            self._answers = Answers(self.engine)
            await self._start_endpoint()
            control = ControlServer(
                self._state.path,
                self._answers.operations(),
                {OPERATION: self._control_cluster_report, CHECK_OPERATION: self._control_cluster_check},
                {"maintenance": self._control_maintenance, "inventory-accept": self._control_accept},
            )
            try:
                await control.listen()
                await self._serve()
            finally:
                await self._shut_down(control)
        finally:
            self._state.close()
        return 0

    def _prepare(self, config: Config) -> tuple[Thresholds, SimulationPlan | None]:
        """Thresholds and simulation plan of a configuration, which the engine needs besides it.

        Raises:
            CommwatchError: thresholds, preset or faults cannot be used.
        """
        thresholds = load_thresholds(config.thresholds)
        if not config.simulation.preset:
            return thresholds, None
        from commwatch.service.simulated import simulation_plan

        return thresholds, simulation_plan(config.simulation, self._state)

    def _build(self, config: Config, prepared: tuple[Thresholds, SimulationPlan | None]) -> Engine:
        thresholds, simulation = prepared
        self._instruments.begin(thresholds.digest, is_simulated=simulation is not None)
        return Engine(
            config, thresholds, self._state, simulation, self._instruments, self._scheduler, self._starvation,
            self._spares.start, self._kernel_log,
        )  # fmt: skip

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)

    async def _start_endpoint(self) -> None:
        web = self.config.web
        self._endpoint = Endpoint(
            metrics=self._metrics,
            unready=self._unready,
            pages={**NodePage(self.snapshot, self._status, web.telemetry_path).pages(), **runbook_pages()},
            documents=self._answers.pages(),
            telemetry_path=web.telemetry_path,
        )
        if web.config_file:
            show = partial(self._instruments.show_reload, "web configuration")
            self._web = WebAccess(Path(web.config_file), self._endpoint, show)
        await self._listen()

    async def _listen(self) -> None:
        """Open the endpoint, on the addresses of the configuration or on what systemd hands over.

        Raises:
            ListenError: an address or socket cannot be used.
        """
        web = self.config.web
        try:
            passed = passed_sockets()
            if web.systemd_socket and not passed:
                raise ListenError("web.systemd_socket is set, and systemd hands no socket over; start commwatch.socket")
            if passed and not web.systemd_socket:
                raise ListenError("systemd hands sockets over; set web.systemd_socket, or disable commwatch.socket")
        except EndpointError as error:
            raise ListenError(str(error)) from error
        try:
            addresses = await self._endpoint.start(() if passed else web.listen_addresses, passed)
        except EndpointError as error:
            raise ListenError(f"{error}; choose another with --web.listen-address") from error
        asked = None if self._web is None else self._web.config
        urls = [url_of(address, socket.gethostname(), asked) for address in addresses]
        log.info("serving", urls=urls, readers=who_reads(addresses, asked), addresses=addresses,
                 telemetry_path=web.telemetry_path, version=__version__)  # fmt: skip

    async def _serve(self) -> None:
        self._scheduler.start()
        stop = asyncio.create_task(self._stop.wait())
        begin = asyncio.create_task(self._begin())
        await asyncio.wait([begin, stop], return_when=asyncio.FIRST_COMPLETED)
        if not begin.done():
            begin.cancel()
            return
        begin.result()
        self._plan()
        heart = asyncio.create_task(self._live())
        self._reloading = asyncio.create_task(self._reload_when_asked())
        if self._ends_after is not None:
            asyncio.get_running_loop().call_later(self._ends_after, self._stop.set)
        await stop
        heart.cancel()

    def _plan(self) -> None:
        """Plan what the daemon does beside an engine."""
        self._scheduler.add(HOUSEKEEPING, self._keep_house, TEND_SECONDS, delay=0.0, owner="daemon")
        self._scheduler.add(LOOK, self._evaluate, LOOK_SECONDS, owner="daemon")
        self._plan_exports()
        if self._web is not None:
            self._scheduler.add(WEB_FILES, self._web.look, WEB_LOOK_SECONDS, owner="daemon")

    def _plan_exports(self) -> None:
        """Those that are asked for, and those that were before a reload and have to be taken back."""
        textfile, otlp = self.config.textfile, self.config.metrics.otlp
        for name, is_asked, run, interval in (
            (TEXTFILE, textfile.path, partial(self._textfile.write, textfile), textfile.interval),
            (OTLP, otlp.endpoint, partial(self._otlp.send, otlp), otlp.interval),
        ):
            if is_asked or self._scheduler.next_run(name) is not None:
                self._scheduler.add(name, run, interval, delay=0.0, owner="daemon")

    async def _begin(self) -> None:
        """The first run of everything; then the daemon is ready."""
        await self._follow_maintenance()
        await self.engine.start()
        self._ready = True
        self._measure_and_evaluate()
        notify("READY=1", f"STATUS={self._status_line()}")
        log.info("ready", status=self._status_line())
        self._spares.end()

    async def _live(self) -> None:
        """Beat on the monotonic clock of the event loop, whatever the scheduler and the jobs do."""
        late = 0.0
        while True:
            try:
                self._beat(late)
            except Exception:
                log.exception("the heartbeat failed")  # a defect of ours: the watchdog is not fed
            now = time.monotonic()
            due = after_readers(now, HEARTBEAT_SECONDS)
            await asyncio.sleep(due - now)
            late = time.monotonic() - due

    def _beat(self, late: float) -> None:
        """Measure the daemon, notice a stepped clock, and send systemd's watchdog message if the daemon lives.

        Args:
            late: seconds by which the beat came too late.
        """
        self._starvation.beat(late)
        step = self._clock_steps.last()
        if step is not None:
            self._instruments.clock_steps.inc()
            self.engine.collection.follow_clock(step)
        if self._lives(late):
            notify("WATCHDOG=1")

    def _lives(self, late: float) -> bool:
        """Whether event loop, scheduler and the jobs without which nothing is watched go on.

        Args:
            late: see ``_beat``; as late may all jobs be, whose turn is at the same moment or comes next.
        """
        if not self._watches:
            log.error("nothing is watched since the configuration could not be read again")
            return False
        if not self._scheduler.makes_progress(PROGRESS_PATIENCE_SECONDS + late):
            log.error("the scheduler does not run", patience_seconds=PROGRESS_PATIENCE_SECONDS)
            return False
        ended = [name for name in VITAL if self._scheduler.since_whole_run(name) > WHOLE_PATIENCE_SECONDS]
        if ended:
            log.error("a job has not come to its end for too long", jobs=ended, patience_seconds=WHOLE_PATIENCE_SECONDS)
        return not ended

    async def _reload_when_asked(self) -> None:
        while not self._stop.is_set():  # before Python 3.12 ``wait_for`` swallows a cancellation as its event comes
            await self._reload.wait()
            self._reload.clear()
            try:
                await self._reload_now()
            except Exception:
                log.exception("the configuration could not be read again")  # a defect of ours; the daemon goes on

    async def _keep_house(self) -> None:
        """See to maintenance, and to which collectors run, and forget what is too old."""
        await self._follow_maintenance()
        async with self._changing:  # an engine that is being replaced reads no more
            self.engine.collection.tend()
            self.engine.expire()

    async def _evaluate(self) -> None:
        async with self._changing:
            self._measure_and_evaluate()

    def _measure_and_evaluate(self) -> None:
        """Measure the daemon's processes and evaluate the rules."""
        processes = [("daemon", [os.getpid()]), *self.engine.processes()]
        self._instruments.measure_processes(Path(self.config.paths.procfs), processes)
        self._instruments.show_starvation(self._starvation)
        self._show_healthchecks()
        self.engine.refresh()
        self.engine.look()
        notify(f"STATUS={self._status_line()}")

    def _show_healthchecks(self) -> None:
        """Expose what checks on this node have counted."""
        try:
            self._instruments.healthchecks = read_counts(self._state.path)
        except OSError as error:
            log.debug("the counts of healthcheck are not exposed", error=str(error))

    def snapshot(self) -> Snapshot:
        """The snapshot for a scrape: all current values, the same object until something changes."""
        return self.engine.store.snapshot()

    async def _follow_maintenance(self) -> None:
        async with self._changing:
            maintenance = self._maintenance_file.read(time.time())
            reason = None if maintenance is None else maintenance.reason
            if reason == self.engine.store.maintenance:
                return
            self._instruments.show_maintenance(reason)
            if reason is None:
                self.engine.resume()
            elif self.engine.store.maintenance is None:
                await self.engine.pause(reason)
            else:
                self.engine.store.maintenance = reason

    async def _reload_now(self) -> None:
        """Take a changed configuration into force; keep the old one when the new one cannot be used."""
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic() * 1e6:.0f}")
        async with self._changing:
            try:
                config = await asyncio.to_thread(self._reload_config)
                self._check_unchangeable(config)
                prepared = await asyncio.to_thread(self._prepare, config)
            except CommwatchError as error:
                log.error("the new configuration is not used; the old one stays in force", error=str(error))
                self._instruments.show_reload("configuration", False)
            else:
                try:
                    await self._change_to(config, prepared)
                except Exception:
                    self._watches = False  # the old engine has stopped, and the new one has not begun
                    raise
                self._watches = True
            if self._web is not None:
                self._web.read_soon()
                self._scheduler.run_in(WEB_FILES, 0.0)
        notify("READY=1", f"STATUS={self._status_line()}")

    def _check_unchangeable(self, config: Config) -> None:
        for old, new, name in (
            (state_path(self.config), state_path(config), "path.state and simulate"),
            (self.config.web, config.web, "web"),
            (self.config.process, config.process, "process"),
        ):
            if old != new:
                raise CommwatchError(f"{name} cannot change while the daemon runs; restart it")

    async def _change_to(self, config: Config, prepared: tuple[Thresholds, SimulationPlan | None]) -> None:
        """Replace the engine; until the new one has read everything once, the page shows what the old one knew last."""
        await self.engine.stop()
        self.config = config
        configure_logging(config.log)
        engine = self._build(config, prepared)
        engine.take_over(self.engine)
        try:
            if self.engine.store.maintenance is not None:
                await engine.pause(self.engine.store.maintenance)
            await engine.start()
        finally:  # also where the daemon is stopped meanwhile: this engine has the processes that are to be ended
            self.engine = self._answers.engine = engine
        self._plan_exports()
        gc.collect()  # the old one: 2 ms, on nodes of 3,000 series 12 to 20
        log.info("the new configuration is in force")

    async def _control_maintenance(self) -> dict[str, Any]:
        await self._follow_maintenance()
        held = {str(pid): paths for pid, paths in self.engine.held().items()}
        return {
            "daemon": True,
            "paused": self.engine.store.maintenance,
            "released": self.engine.released(),
            "held": held,
        }

    async def _control_accept(self) -> dict[str, Any]:
        async with self._changing:  # an engine that is being replaced would take it with it
            return await self.engine.accept_inventory()

    async def _control_cluster_report(self, document: bytes, peer: Peer) -> Taken:
        return await self.engine.between_nodes.take(document, peer)

    async def _control_cluster_check(self, document: bytes, peer: Peer) -> Taken:
        return await self.engine.between_nodes.take_check(document, peer)

    def _unready(self) -> list[str]:
        return [] if self._ready else ["the first run of the collectors is not over"]

    def _status(self) -> Status:
        return describe(self._answers, self.snapshot())

    def _status_line(self) -> str:
        collectors = self.engine.collection.collectors.values()
        failing = sorted(one.name for one in collectors if one.failing)
        parts = [f"simulated {node_name(self.config.simulation.preset)}"] if self.config.simulation.preset else []
        parts.append(f"{len(collectors)} collectors" + (f", failing: {', '.join(failing)}" if failing else ""))
        if self.engine.store.maintenance is not None:
            parts.insert(0, f"paused ({self.engine.store.maintenance})")
        return "; ".join(parts)

    async def _stop_engine(self) -> None:
        """Stop the engine; a reload under way is given up first, and leaves one engine to stop."""
        if self._reloading is not None:
            self._reloading.cancel()
            await asyncio.wait([self._reloading])
        await self.engine.stop()

    async def _shut_down(self, control: ControlServer) -> None:
        """Stop within five seconds, whatever hangs."""
        notify("STOPPING=1")
        log.info("stopping")
        self._scheduler.remove_all("daemon")  # nothing writes the textfile once it is removed
        work = asyncio.gather(control.stop(), self._endpoint.stop(), self._textfile.stop(), self._stop_engine())
        _, late = await asyncio.wait([asyncio.ensure_future(work)], timeout=STOP_SECONDS)
        if late:
            # Threads that still run may never end, and the end of the event loop would wait for them.
            log.error("not everything stopped in time; leaving", after_seconds=STOP_SECONDS)
            os._exit(1)
        self._scheduler.stop()
        if self._web is not None:
            self._web.close()
        log.info("stopped")
