"""Receives the report of a run or check between nodes about this node, from the member process on it, and shows it."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import structlog

from commwatch.cluster.node_record import STATE_NAME, NodeHistory, NodeRecord, NotTaken
from commwatch.cluster.node_report import CheckReport, NodeReport
from commwatch.config.settings import Cluster
from commwatch.node.store import Store
from commwatch.state.directory import StateDirectory
from commwatch.state.records import decode
from commwatch_exporters.listen import Peer
from commwatch_exporters.snapshot import Layout

log = structlog.get_logger("commwatch.cluster")

Report = TypeVar("Report", NodeReport, CheckReport)

_LOOKUP_SECONDS = 3.0
"""Time to look up a user's name, which a directory service may have to answer."""


class Taken(msgspec.Struct, frozen=True):
    """The answer to whom a report was taken of."""

    taken: bool = True


class BetweenNodes:
    """The runs and checks between nodes in which this node took part."""

    def __init__(
        self, settings: Cluster, state: StateDirectory, store: Store, clock: Callable[[], float] = time.time
    ) -> None:  # fmt: skip
        """
        Args:
            settings: whose reports count, and how long.
            state: keeps what must survive a restart.
            clock: seconds since 1970.
        """
        self._users = settings.users
        self._interval = settings.interval
        self._state = state
        self._store = store
        self._clock = clock
        self._record = state.restore(STATE_NAME, NodeHistory, self._taken_over)

    def _taken_over(self, history: NodeHistory | None) -> NodeRecord:
        record = NodeRecord(self._interval, history)
        Layout((metric, labels) for metric, labels, _ in record.readings(self._clock()))  # it can be shown
        return record

    async def take(self, document: bytes, peer: Peer) -> Taken:
        """Take the report of a run about the local node.

        Raises:
            NotTaken: it does not count; nothing is exported of it.
        """
        report = await self._take(document, peer, NodeReport)
        log.info("a run between nodes has ended", run=report.run, outcome=report.outcome, nodes=report.nodes,
                 named=[f"{one.kind} {one.element}: {one.fault}" for one in report.suspicions])  # fmt: skip
        return await self._saved_now()

    async def take_check(self, document: bytes, peer: Peer) -> Taken:
        """Take the report of a check; arguments and errors as ``take``."""
        report = await self._take(document, peer, CheckReport)
        log.info("a check between nodes has ended", run=report.run, outcome=report.outcome, failed=report.causes)
        return await self._saved_now()

    async def _take(self, document: bytes, peer: Peer, kind: type[Report]) -> Report:
        try:
            if not await self._may(peer.uid):
                raise NotTaken("stranger", f"user {peer.uid} may not hand in results; cluster.users names who may")
            try:
                report = decode(document, kind)
            except (ValueError, RecursionError) as error:
                raise NotTaken("malformed", f"{error}"[:300]) from error
            self._record.take(report, self._clock())
            return report
        except NotTaken as error:
            self._record.refuse(error.reason)
            log.warning("a report of a run between nodes was not taken", error=str(error), pid=peer.pid, uid=peer.uid)
            raise
        finally:
            self.refresh()

    async def _saved_now(self) -> Taken:
        try:
            await asyncio.to_thread(self.save)
        except OSError as error:
            log.error("what is known of runs between nodes cannot be saved; it is tried again later", error=str(error))
        return Taken()

    async def _may(self, uid: int) -> bool:
        if uid in (0, os.geteuid()) or str(uid) in self._users:
            return True
        names = [one for one in self._users if not one.isdecimal()]
        if not names:
            return False
        try:
            return uid in await asyncio.wait_for(asyncio.to_thread(_uids, names), _LOOKUP_SECONDS)
        except asyncio.TimeoutError:
            log.warning("the users of cluster.users could not be looked up", users=names)
            return False

    def take_over(self, earlier: BetweenNodes) -> None:
        """Take over the state under an earlier configuration, which takes reports until this one is in force."""
        self._record.take_over(earlier._record)

    def refresh(self) -> None:
        """Show the current state: results age."""
        readings = self._record.readings(self._clock())
        shown = {(metric, labels): value for metric, labels, value in readings}
        self._store.show("cluster", "", shown, time.monotonic())

    def save(self) -> None:
        """Write what must survive a restart; of a node without a run or check that is nothing.

        Raises:
            OSError: it cannot be written; what was written before is still there.
        """
        if self._record.history != NodeHistory():
            self._state.save(STATE_NAME, self._record.history)


def _uids(names: Sequence[str]) -> frozenset[int]:
    """Of those that exist."""
    found = set()
    for name in names:
        try:
            found.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    return frozenset(found)
