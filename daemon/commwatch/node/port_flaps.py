"""How often and for how long an RDMA port was not active although it had been."""

from __future__ import annotations

from commwatch.node.link_flaps import RDMA, LinkFlaps, gone
from commwatch.node.rate import interval
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Block, Layout
from commwatch_exporters.state_words import RDMA_ACTIVE

GROUP = "rdma_port_flaps"
_COLLECTOR = "rdma"
FORGOTTEN_SECONDS = 3600.0
"""A driver that is loaded again brings its ports back long before; the ports of a pod that has ended never come."""


class PortFlaps:
    """Counts the drops of one port since the daemon started, and the time they took.

    A port that has not been active yet, such as one without a cable, counts nothing. A drop shorter than the interval
    of the readings is not seen here; ``rdma_port_link_downed_total`` of the adapter has it. Time in which the port was
    not read counts as neither.

    Args:
        device: name of the RDMA device, as a label.
        port: number of the port, as a label.
        max_gap_seconds: nothing is known of what lies between readings further apart.
    """

    def __init__(self, device: str, port: str, max_gap_seconds: float) -> None:
        labels = (device, port)
        self._layout = Layout(
            (("commwatch_rdma_port_flaps_total", labels), ("commwatch_rdma_port_down_seconds_total", labels))
        )
        self._key = ("commwatch_rdma_port_state", labels)
        self._max_gap_seconds = max_gap_seconds
        self._was_active = False
        """The last state that was read is active."""
        self._down_at: float | None = None
        """Time of the last reading, where the port was down in it after it had been active."""
        self.flaps = 0
        """Drops until now."""
        self._down_seconds = 0.0
        self.seen_at = float("-inf")
        """Monotonic seconds of the last reading."""

    def reset(self) -> None:
        """The device is not here: the state of its port when it comes back is no evidence of a drop."""
        self._was_active, self._down_at = False, None

    def allow_gap(self, seconds: float) -> None:
        """Change ``max_gap_seconds``: the collector runs at another interval now."""
        self._max_gap_seconds = seconds

    def update(self, block: Block) -> Block:
        """Take the next reading of the port; gives both totals at the same time.

        A drop begins with the first reading that shows it and ends with the first that shows the port active again.
        """
        if block.time - self.seen_at > self._max_gap_seconds:
            self.reset()
        self.seen_at = block.time
        position = block.layout.index.get(self._key)
        state = None if position is None else block.values[position]
        if state is not None:
            if self._down_at is not None:
                self._down_seconds += interval(self._down_at, block.time, self._max_gap_seconds) or 0.0
            is_active = state == RDMA_ACTIVE
            self.flaps += self._was_active and not is_active
            is_dropped = not is_active and (self._was_active or self._down_at is not None)
            self._was_active, self._down_at = is_active, block.time if is_dropped else None
        return Block(self._layout, (self.flaps, round(self._down_seconds, 3)), block.time)


class Flaps(Tracker):
    """The drops of every RDMA port since the daemon started."""

    collectors = (_COLLECTOR,)

    def __init__(self, store: Store, link_flaps: LinkFlaps) -> None:
        super().__init__(store)
        store.declare(GROUP, self.collectors)
        self._link_flaps = link_flaps
        self._ports: dict[str, PortFlaps] = {}
        """By key of the port. One that comes back within an hour goes on counting."""

    def on_batch(self, outcome: Outcome) -> None:
        """Take a reading of the ports, and show their totals."""
        collector, blocks = outcome.collector, outcome.collected.blocks
        gap = 3 * collector.current_interval
        for device, block in blocks.items():
            if not device:
                continue
            port = self._ports.get(device)
            if port is None:
                name, number, *_ = block.layout.series[0][1]
                port = self._ports[device] = PortFlaps(name, number, gap)
            port.allow_gap(gap)
            before = port.flaps
            flaps = port.update(block)
            if port.flaps > before:
                self.version += 1
                if not self._link_flaps.is_port_off(block):
                    self._link_flaps.add(RDMA, tuple(block.layout.series[0][1][:2]), "state", 1, block.time)
            self._store.put(GROUP, device, flaps, block.time + collector.lifetime)
        for device in gone(outcome.collected, self._ports.keys()):
            self._ports[device].reset()

    def on_tick(self, now: float) -> None:
        """Drop the totals of ports that are not read, and forget ports that have been gone for an hour."""
        for device in self._store.devices(GROUP) - self._store.devices(_COLLECTOR):
            self._store.drop(GROUP, device)
        for device in [device for device, port in self._ports.items() if now - port.seen_at > FORGOTTEN_SECONDS]:
            del self._ports[device]
