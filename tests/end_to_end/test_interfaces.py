"""The network and ethtool sources on interfaces of the real kernel, in a network namespace made for the test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.daemon import environment

READ = """
import json, sys
from pathlib import Path
from commwatch.config.settings import NetworkSection as Settings
from commwatch.sources.network import NetworkSource
source = NetworkSource(Path("/sys"), Settings(physical_only=json.loads(sys.argv[1])))
source.open(lambda device: None, frozenset(), None)
batch = source.collect("network")
print(json.dumps({one.device: {name: value for (name, _), value in zip(one.series, one.values)}
                  for one in batch.readings if one.device}))
"""

READ_ETHTOOL = """
import json, sys
from pathlib import Path
from commwatch.config.settings import NetworkSection as Settings
from commwatch.sources.ethtool.source import EthtoolSource
from commwatch.sources.ethtool.table import CounterRow, driver
table = {"": driver([CounterRow("peer_ifindex", "peer"), CounterRow("rx_queue_N_drops", "drops", numbers=2)])}
source = EthtoolSource(Path("/sys"), Settings(physical_only=False), drivers=table)
source.open(lambda device: None, frozenset(), None)
batch = source.collect("ethtool")
again = source.collect("ethtool")
source.close()
found = {one.device: [[name, *labels[1:], value] for (name, labels), value in zip(one.series, one.values)]
         for one in again.readings if one.device}
absences = [[one.device, one.reason, one.detail] for one in again.absences]
print(json.dumps([found, absences, [one.device for one in batch.readings]]))
"""


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace with a pair of interfaces that are connected to each other."""
    name = f"commwatch-test-{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "add", "left", "type", "veth", "peer", "name", "right")
        for end in ("left", "right"):
            ip("-n", name, "link", "set", end, "up")
        yield name
    finally:
        ip("netns", "delete", name)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def read(namespace: str, *, physical_only: bool) -> dict[str, dict[str, float | None]]:
    """What the source reads in the namespace, which has a /sys/class/net of its own."""
    done = subprocess.run(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", READ, json.dumps(physical_only)],
        env=environment(), check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, dict[str, float | None]] = json.loads(done.stdout)
    return found


@pytest.mark.namespaces
def test_carrier_and_its_changes_are_those_of_the_kernel(namespace: str) -> None:
    """A link that goes down is seen as down, with its change counted; its speed is not made up."""
    up = read(namespace, physical_only=False)["left"]
    ip("-n", namespace, "link", "set", "right", "down")
    down = read(namespace, physical_only=False)["left"]

    assert (up["commwatch_ethernet_carrier"], down["commwatch_ethernet_carrier"]) == (1, 0)
    changes = [one["commwatch_ethernet_carrier_changes_total"] for one in (up, down)]
    assert None not in changes
    assert changes[1] == (changes[0] or 0) + 1
    assert down["commwatch_ethernet_speed_bytes_per_second"] is None
    assert up["commwatch_ethernet_transmit_bytes_total"] is not None


@pytest.mark.namespaces
def test_interfaces_without_a_device_are_left_out_by_default(namespace: str) -> None:
    """A pair of virtual ends and the loopback are no ports of the node."""
    assert read(namespace, physical_only=True) == {}


@pytest.mark.namespaces
def test_statistics_of_a_driver_are_read_through_the_kernel(namespace: str) -> None:
    """Of a pair of ends each names the other by its index; the loopback, which keeps no statistics, is no failure."""
    done = subprocess.run(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", READ_ETHTOOL],
        env=environment(), check=True, capture_output=True, text=True,
    )  # fmt: skip
    links = subprocess.run(["ip", "-n", namespace, "-o", "link"], check=True, capture_output=True, text=True).stdout
    index = {name: int(number) for number, name in re.findall(r"^(\d+): (\w+)@", links, re.MULTILINE)}

    found, absences, first = json.loads(done.stdout)

    assert absences == []
    assert first == ["left", "right", ""]
    assert ["commwatch_peer", index["right"]] in found["left"]
    assert ["commwatch_peer", index["left"]] in found["right"]
    assert ["commwatch_drops", "0", 0] in found["left"]
