"""Follows counters that wrap from run to run of the collectors, and over restarts of the daemon."""

from __future__ import annotations

import msgspec

from commwatch.node.run import Collector
from commwatch.node.wrap import Unwrap, Wrapped
from commwatch.state.directory import StateDirectory
from commwatch_exporters.snapshot import Block, Layout

STATE_NAME = "wraps"


class WrapsState(msgspec.Struct):
    """What survives a restart of the daemon, and no restart of the machine."""

    boot: str = ""
    """Identity of the boot to which the numbers belong; empty where it is not known."""
    devices: dict[str, dict[str, list[Wrapped]]] = msgspec.field(default_factory=dict)
    """By collector and device: the counters that have wrapped."""


class Wraps:
    """Makes wrapping counters grow, in blocks on their way into the store.

    It lives in the daemon: a worker that is replaced would begin again. What the counters lost is kept in the state
    directory, because a number that fell at each restart would be taken for a reset, and so for an increase.
    """

    def __init__(self, state: StateDirectory, boot: str) -> None:
        """Args:
        state: where it is kept.
        boot: identity of this boot; empty where it is not known, and nothing is taken over.
        """
        self._state = state
        self._boot = boot
        self._saved = state.load(STATE_NAME, WrapsState) or WrapsState()
        kept = self._saved.devices if boot and self._saved.boot == boot else {}
        self._known: dict[str, dict[str, tuple[Layout | None, Unwrap | None]]] = {
            collector: {device: (None, Unwrap(wrapped)) for device, wrapped in devices.items()}
            for collector, devices in kept.items()
        }
        """By collector and device; without ``Unwrap`` where nothing wraps in the layout."""

    def correct(self, collector: Collector, blocks: dict[str, Block]) -> dict[str, Block]:
        """The blocks of one run as they are to be shown and analysed."""
        gap = 3 * collector.current_interval
        known = self._known.setdefault(collector.name, {})
        corrected = {}
        for device, block in blocks.items():
            layout, unwrap = known.get(device, (None, None))
            if layout is not block.layout:
                if Unwrap.is_needed(block.layout):
                    unwrap = unwrap or Unwrap()
                known[device] = (block.layout, unwrap)
            corrected[device] = block if unwrap is None else unwrap.update(block, gap)
        if len(known) > len(blocks):  # interfaces come and go: those that are gone leave nothing behind
            for device in known.keys() - blocks.keys():
                unwrap = known[device][1]
                if unwrap is None or not unwrap.has_wrapped:
                    del known[device]
        return corrected

    def save(self) -> None:
        """Write what the counters lost, where that has changed; may be called in another thread.

        Raises:
            OSError: it cannot be written; what was written before is still there.
        """
        devices: dict[str, dict[str, list[Wrapped]]] = {}
        for collector, known in list(self._known.items()):
            for device, (_, unwrap) in list(known.items()):
                if unwrap is not None and unwrap.has_wrapped:
                    devices.setdefault(collector, {})[device] = unwrap.wrapped()
        if devices != self._saved.devices:
            state = WrapsState(self._boot, devices)
            self._state.save(STATE_NAME, state)
            self._saved = state
