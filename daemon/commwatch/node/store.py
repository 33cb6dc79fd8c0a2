"""The store: the latest block of each collector and device, for as long as it may count as current."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from commwatch_exporters.snapshot import Block, Snapshot


class Store:
    """Blocks by group (a collector or an analysis) and device; what failed or grew old is gone."""

    def __init__(self, hidden: frozenset[str] = frozenset(), unexported: frozenset[str] = frozenset()) -> None:
        """Args:
        hidden: metric families that are kept for the analysis and not shown.
        unexported: those that are shown, but not on the metrics page.
        """
        self.occupants: Mapping[str, tuple[int, ...]] = {}
        """Ids of the processes with a compute context, by PCI address of the GPU; of the last run of nvml_processes."""
        self.jobs: Mapping[int, int] = {}
        """By id of a process whose launcher names its job: the id of the job's first process; as of the last audit."""
        self._hidden = hidden
        self._unexported = unexported
        self._blocks: dict[str, dict[str, tuple[Block, float]]] = {}
        self._order: list[tuple[dict[str, tuple[Block, float]], str]] | None = None
        """Where each block stands, in the order of the page; None after one has come or gone."""
        self._first_expiry = float("inf")
        """No block expires before this monotonic time."""
        self._version = 0
        self._snapshot: tuple[int, Snapshot] | None = None

    def put(self, group: str, device: str, block: Block, expires: float) -> None:
        """Keep a block until a monotonic time; what says the same keeps the text rendered before."""
        devices = self._blocks.setdefault(group, {})
        known = devices.get(device)
        if known is None:
            self._order = None
        if known is not None:
            if block.layout is not known[0].layout and block.layout.series == known[0].layout.series:
                block.layout = known[0].layout  # for another one the whole page would be laid out again
            if block.layout is known[0].layout:
                block.adopt_texts(known[0])
        devices[device] = (block, expires)
        self._first_expiry = min(self._first_expiry, expires)
        self._version += 1

    def drop(self, group: str, device: str) -> None:
        """Forget one block: its device failed or went away."""
        if self._blocks.get(group, {}).pop(device, None) is not None:
            self._order = None
            self._version += 1

    def drop_group(self, group: str) -> None:
        """Forget all blocks of a group."""
        if self._blocks.pop(group, None):
            self._order = None
            self._version += 1

    def expire(self, now: float) -> None:
        """Forget what has grown too old to count as current."""
        if now <= self._first_expiry:
            return
        for group, devices in self._blocks.items():
            for device in [device for device, (_, expires) in devices.items() if expires < now]:
                self.drop(group, device)
        times = (expires for devices in self._blocks.values() for _, expires in devices.values())
        self._first_expiry = min(times, default=float("inf"))

    def group(self, group: str) -> dict[str, Block]:
        """The current blocks of a group by device."""
        return {device: block for device, (block, _) in self._blocks.get(group, {}).items()}

    def get(self, group: str, device: str) -> Block | None:
        """The current block of a device."""
        known = self._blocks.get(group, {}).get(device)
        return None if known is None else known[0]

    def blocks(self) -> Iterator[tuple[str, Block]]:
        """All current blocks with their groups."""
        for group, devices in self._blocks.items():
            for block, _ in devices.values():
                yield group, block

    def _all(self) -> Iterator[Block]:
        if self._order is None:
            self._order = [(devices, device) for devices in self._blocks.values() for device in sorted(devices)]
        for devices, device in self._order:
            yield devices[device][0]

    def snapshot(self) -> Snapshot:
        """All current blocks; the same object as before while nothing has changed."""
        if self._snapshot is None or self._snapshot[0] != self._version:
            earlier = None if self._snapshot is None else self._snapshot[1]
            self._snapshot = (self._version, Snapshot(self._all(), self._hidden, self._unexported, earlier))
        return self._snapshot[1]
