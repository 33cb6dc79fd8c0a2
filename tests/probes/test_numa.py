"""Which CPUs are near a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.probes.cycle.numa import near_cpus, parse_cpus

ADDRESS = "0000:17:00.0"


def test_cpus_of_the_gpus_own_numa_node(tmp_path: Path) -> None:
    """The kernel says of each PCI device which CPUs are near; of one that it does not know, none are."""
    device = tmp_path / "bus/pci/devices" / ADDRESS
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text("0-2,64\n")

    assert near_cpus(ADDRESS, tmp_path) == {0, 1, 2, 64}
    assert near_cpus("0000:18:00.0", tmp_path) == frozenset()


@pytest.mark.parametrize("text", ["", "\n", "0-", "-3", "a", "1;2", "1,,2", "0x3"])
def test_any_other_text_names_no_cpu(text: str) -> None:
    """No affinity is made of what is not a list of CPUs."""
    assert parse_cpus(text) == frozenset()


@given(st.frozensets(st.integers(min_value=0, max_value=4096)))
def test_lists_are_read_back(cpus: frozenset[int]) -> None:
    """Every list of single CPUs and of ranges gives the CPUs that are in it."""
    singles = ",".join(map(str, sorted(cpus)))
    ranges = ",".join(f"{cpu}-{cpu}" for cpu in cpus)

    assert parse_cpus(singles) == parse_cpus(ranges) == cpus


@given(st.text(max_size=20))
def test_no_text_is_an_error(text: str) -> None:
    """Whatever stands there is a list or none."""
    assert all(cpu >= 0 for cpu in parse_cpus(text))
