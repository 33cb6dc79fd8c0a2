"""The store: the latest block of each collector and device, for as long as it may count as current."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set

from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value


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
        self.single_node: frozenset[int] = frozenset()
        """Ids of processes whose launcher says that their job runs on this node only; likewise."""
        self.maintenance: str | None = None
        """Why the driver is let go, so that the node is neither read through it nor probed; None where it is not."""
        self._collectors: dict[str, tuple[str, ...]] = {}
        """By group of an analysis: those whose readings it depends on."""
        self._holders: dict[str, set[str]] = {}
        """By metric: the groups that have held it, or that were declared to."""
        self.silent: set[str] = set()
        """Metrics without a series while nothing is wrong: of these alone a daemon that has just started knows where
        they would be."""
        self._hidden = hidden
        self._unexported = unexported
        self._blocks: dict[str, dict[str, Block]] = {}
        self._snapshot: Snapshot | None = None
        """Of what is current; None after a change."""

    def declare(
        self, group: str, collectors: Iterable[str] = (), silent: Collection[str] = (), holds: Iterable[str] = ()
    ) -> None:
        """Declare a group whose blocks no collector reads itself.

        Args:
            group: of an analysis, or of the daemon itself.
            collectors: whose readings it depends on; none where its content is known without any.
            silent: its metrics that have no series while nothing is wrong.
            holds: its metrics that may have no series for another reason.
        """
        self._collectors[group] = tuple(collectors)
        self.silent.update(silent)
        for metric in (*silent, *holds):
            self._holders.setdefault(metric, set()).add(group)

    def collectors(self, group: str) -> Sequence[str]:
        """Those whose readings a group depends on; a group that was not declared is that of a collector."""
        return self._collectors.get(group, (group,))

    def holders(self, metric: str) -> Set[str]:
        """The groups that have held a metric, or were declared to; empty: this node never had it."""
        return self._holders.get(metric, frozenset())

    def put(self, group: str, device: str, block: Block, lifetime: float = float("inf")) -> None:
        """Keep a block for some seconds from its time on."""
        self.put_run(group, {device: block}, lifetime)

    def put_run(self, group: str, blocks: Mapping[str, Block], lifetime: float) -> None:
        """Keep blocks, by device, each for some seconds from its time on."""
        devices = self._blocks.setdefault(group, {})
        for device, block in blocks.items():
            earlier = devices.get(device)
            if earlier is not None and block.layout.series == earlier.layout.series:
                block.layout = earlier.layout  # for another one the whole page would be laid out again
            else:
                for metric in block.layout.families:
                    self._holders.setdefault(metric, set()).add(group)
            block.expires = block.time + lifetime
            devices[device] = block
            self._snapshot = None

    def show(
        self, group: str, device: str, readings: Mapping[Series, Value], time: float, lifetime: float = float("inf")
    ) -> None:
        """Keep what was worked out as a block; without any reading there is none.

        Args:
            device: what the readings are of, by any name; empty where the group has one block.
            readings: while their series are those of the block before, it has the layout of that.
            time: monotonic seconds at which they were so.
            lifetime: as for ``put``.
        """
        if not readings:
            self.drop(group, device)
            return
        earlier = self.get(group, device)
        is_alike = earlier is not None and earlier.layout.series == tuple(readings)
        layout = earlier.layout if earlier is not None and is_alike else Layout(readings)
        self.put(group, device, Block(layout, list(readings.values()), time), lifetime)

    def drop(self, group: str, device: str) -> None:
        """Forget one block: its device failed or went away."""
        if self._blocks.get(group, {}).pop(device, None) is not None:
            self._snapshot = None

    def retain(self, group: str, devices: Collection[str]) -> None:
        """Forget the blocks of a group whose device is not among these."""
        for device in self._blocks.get(group, {}).keys() - devices:
            self.drop(group, device)

    def drop_group(self, group: str) -> None:
        if self._blocks.pop(group, None):
            self._snapshot = None

    def expire(self, now: float) -> None:
        """Forget what has grown too old to count as current."""
        for group, devices in self._blocks.items():
            for device in [device for device, block in devices.items() if block.expires < now]:
                self.drop(group, device)

    def group(self, group: str) -> dict[str, Block]:
        return dict(self._blocks.get(group, {}))

    def devices(self, group: str) -> Set[str]:
        """The devices of which a group has current blocks, as a view: for use before the next change."""
        return self._blocks.get(group, {}).keys()

    def get(self, group: str, device: str) -> Block | None:
        return self._blocks.get(group, {}).get(device)

    def blocks(self) -> Iterator[tuple[str, Block]]:
        for group, devices in self._blocks.items():
            for block in devices.values():
                yield group, block

    def snapshot(self) -> Snapshot:
        """All current blocks; the same object as before while nothing has changed."""
        if self._snapshot is None:
            # In the order of the page.
            blocks = [devices[device] for devices in self._blocks.values() for device in sorted(devices)]
            self._snapshot = Snapshot(blocks, self._hidden, self._unexported)
        return self._snapshot


def number_of(block: Block, metric: str) -> Value:
    """The number of a metric of which a block has one series, whatever its labels; None where it was not read."""
    return next((number for _, number in block.samples(metric)), None)
