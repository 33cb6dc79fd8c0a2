"""What the rules say that they read, held against what they read: on pages of any numbers, and all of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from random import Random
from typing import cast

from commwatch.config.thresholds import Thresholds
from commwatch.findings.codes import CODES
from commwatch.findings.facts import Facts
from commwatch_exporters.catalogue import CATALOGUE
from support.facts import NOW, RULES, Declared, DeclaredThresholds, facts_of, metrics_of_details, seen_in, shipped

LABELS: Mapping[str, tuple[str, ...]] = {
    "device": ("0000:17:00.0", "mlx5_0", "mlx5_0/1"), "parent": ("pci0000:16",), "role": ("gpu", "nic"),
    "severity": ("correctable", "fatal", "nonfatal", "harmful"), "xid": ("79",), "sxid": ("20034",),
    "message": ("fallen_off_bus",), "check": ("route_unhealthy", "partition_not_assigned"),
    "reason": ("hw_slowdown", "wrong_result", "budget"), "aspect": ("generation", "width"),
    "capability": ("nvlink",), "service": ("nvidia-fabricmanager",), "direction": ("transmit",),
    "source": ("nvml", "rdma", "model"), "counter": ("rdma_port_symbol_errors_total",), "backend": ("nccl",),
    "collector": ("rdma", "network", "nvml_gpu"),
    "kind": ("rdma_port", "ethernet_port", "shorted", "nic", "leaf", "hca_list"),
    "category": ("ib_retry", "timeout", "shm"), "element": ("GPU0",),
    "collective": ("all_reduce", "host_copies", "pairs"),
    "expected_source": ("model", "reference"), "quantity": ("host_to_device 0000:17:00.0",),
    "link_layer": ("InfiniBand", "Ethernet"), "event": ("firmware_fatal", "health_issue"),
}  # fmt: skip
"""Values that some rule looks for; of a page each metric has the same."""
GPUS = tuple(
    {"gpu": first, "pci_bus_id": f"0000:1{first}:00.0", "peer": second, "peer_pci_bus_id": f"0000:1{second}:00.0",
     "src": first, "dst": second}
    for first, second in (("7", "8"), ("8", "9"), ("9", "7"))
)  # fmt: skip
NUMBERS = (0.0, 1.0, 1.0, 400.0, 2.0, 3.0, 4.0, 5.0, 16.0, 1e4, 1e12, NOW - 500.0)
RISES = (0.0, 1.0, 100.0, 1e3, 1e9)

PAGES = 350
"""At most, until each metric and each threshold of each rule was read."""
FOR_ALL = 150
"""Each rule looks at this many; from then on those of which something declared was not read yet."""

LOOKS = ((30.0, 700.0), (700.0, 2_000.0), (10_000.0, 80_000.0))
"""Two earlier ones, seconds ago."""


@cache
def any_facts(page: int) -> Facts:
    """A page of three GPUs with any numbers, two earlier looks, and some metrics that are not read."""
    dice = Random(f"b{page}")  # noqa: S311 - the same pages each time
    names = {label: dice.choice(values) for label, values in LABELS.items()}
    absent, looks = dice.choice((0.05, 0.8)), dice.choice(LOOKS)
    pages: dict[float, dict[str, dict[tuple[str, ...], float]]] = {0.0: {}, **{ago: {} for ago in looks}}
    for metric in CATALOGUE.values():
        # By metric, so that one that is added to the catalogue changes nothing of the others.
        thrown = iter(blake2b(f"b{page} {metric.name}".encode(), digest_size=1 + 4 * len(GPUS)).digest())
        if metric.type == "histogram" or next(thrown) < 256 * absent:
            continue
        for gpu in GPUS:
            labels = tuple({**names, **gpu}.get(label, "1") for label in metric.labels)
            number = NUMBERS[next(thrown) % len(NUMBERS)]
            for series in pages.values():
                series.setdefault(metric.name, {})[labels] = number
                number -= RISES[next(thrown) % len(RISES)]
    return facts_of(pages.pop(0.0), pages)


def test_rules_read_what_they_declare() -> None:
    """All of it and nothing else: a metric or a threshold more or less in the declaration is a failure."""
    declared = {rule.name: {*rule.metrics_read, *metrics_of_details(rule), *rule.thresholds} for rule in RULES}
    asked = {name: set[str]() for name in declared}
    for page in range(PAGES):
        facts = any_facts(page)
        for rule in RULES:
            if page >= FOR_ALL and asked[rule.name] == declared[rule.name]:
                continue
            own, limits = Declared(facts, rule), DeclaredThresholds(shipped(), rule)
            list(rule.evaluate(own, cast(Thresholds, limits)))
            asked[rule.name] |= own.read | limits.read
        if page >= FOR_ALL and asked == declared:
            break
    assert asked == declared


def test_no_detail_decides() -> None:
    """Without what only adds numbers, names and parts a rule matches the same codes at the same components."""
    matched = {one.code for page in range(FOR_ALL) for one in seen_in(any_facts(page))}

    assert len(matched) > 0.8 * len(CODES), "the pages show most faults"
