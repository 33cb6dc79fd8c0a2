"""Which CPUs are near a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.probes.cycle.numa import near_cpus, parse_cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,64", {0, 1, 2, 64}), ("7", {7}), *((text, set()) for text in ("", "0-", "-3", "a", "1;2", "1,,2", "0x3"))],
)
def test_cpus_of_the_gpus_own_numa_node(tmp_path: Path, text: str, cpus: set[int]) -> None:
    """As the kernel lists them of a PCI device; whatever is no such list names none, and of an unknown one none is."""
    device = tmp_path / "bus/pci/devices/0000:17:00.0"
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text(f"{text}\n")

    assert near_cpus("0000:17:00.0", tmp_path) == parse_cpus(text) == cpus
    assert near_cpus("0000:18:00.0", tmp_path) == frozenset()
