"""What the inventory learns of ports: network interfaces and RDMA ports alike, each by its name."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch.node.inventory_state import Learned
from commwatch.node.observation import SeenPort
from commwatch.units import format_rate


def observe_ports(
    records: dict[str, Learned], seen: Mapping[str, SeenPort], what: str, elapsed: float, learn_after: float
) -> list[str]:
    """Take the ports that are here; returns what is expected from now on, in sentences.

    Args:
        records: what was learned; changed in place.
        seen: the ports by name. One that is not among them is gone; one whose state was not read changes nothing.
        what: how a port is called: ``interface``.
        elapsed: seconds since the last observation.
        learn_after: seconds for which a port must be up.
    """
    learned = []
    for name in records.keys() - seen.keys():
        records[name].see(None, elapsed, learn_after)
    for name, port in seen.items():
        if port.is_up is None:
            continue
        record = records.setdefault(name, Learned())
        speed = port.speed or record.best_known()
        if record.see(speed if port.is_up else None, elapsed, learn_after):
            learned.append(f"{what} {name} is expected" + (f" at {format_rate(speed)}" if speed else ""))
    for name in [name for name, record in records.items() if record == Learned()]:
        del records[name]
    return learned


def accept_ports(records: dict[str, Learned], seen: Mapping[str, SeenPort], what: str) -> list[str]:
    """Expect the ports that are up, and no others; returns what is given up. Arguments as for ``observe_ports``."""
    given_up = []
    for name in list(records):
        port = seen.get(name)
        if port is not None and port.is_up is None:
            continue
        if port is not None and port.is_up:
            records[name].accept(port.speed or records[name].best_known())
        elif records.pop(name).expected is not None:
            given_up.append(f"{what} {name} is no longer expected")
    return given_up


def expected_ports(records: Mapping[str, Learned]) -> list[str]:
    """Names of the ports that are expected."""
    return [name for name, record in records.items() if record.expected is not None]


def ports_up(records: Mapping[str, Learned], seen: Mapping[str, SeenPort]) -> int | None:
    """How many ports are up; None where the state of one that is expected was not read."""
    if any(name in seen and seen[name].is_up is None for name in expected_ports(records)):
        return None
    return sum(port.is_up is True for port in seen.values())


def expected_speed(records: Mapping[str, Learned], name: str) -> float | None:
    """Expected speed of a port, bytes per second; while none was learned the present one; None for none."""
    record = records.get(name)
    return None if record is None else (record.expected or record.candidate or None)
