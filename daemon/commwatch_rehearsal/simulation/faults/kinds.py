"""Every kind of fault, under the headings of docs/using/simulation.md."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch_rehearsal.simulation.faults.fault import Kind
from commwatch_rehearsal.simulation.faults.host_kinds import AER, HOST, RDMA
from commwatch_rehearsal.simulation.faults.nvidia_kinds import DRIVER, GPU, NVLINK, PCIE
from commwatch_rehearsal.simulation.faults.probe_kinds import PROBES
from commwatch_rehearsal.simulation.faults.values import RATE

NETWORK: Mapping[str, Kind] = {
    "ethernet_down": Kind("interface", "the `interface` has no carrier", "interface: ens1np0, for: 20s"),
    "ethernet_congestion": Kind(
        "interface",
        "the network pauses priority 3 of the `interface` at `rate`, 50 µs each; nothing is dropped",
        "interface: ens1np0, rate: 1000/s",
        {"rate": RATE},
    ),
    "ethernet_discards": Kind(
        "interface", "the port drops packets on arrival at `rate`", "interface: ens1np0, rate: 100/s", {"rate": RATE}
    ),
    "ethernet_symbol_errors": Kind(
        "interface",
        "symbol errors on one lane at `rate` after error correction",
        "interface: ens1np0, rate: 10/min",
        {"rate": RATE},
    ),
}

FAMILIES: Mapping[str, Mapping[str, Kind]] = {
    "NVLink": NVLINK,
    "PCIe": {**PCIE, **AER},
    "GPU": GPU,
    "Driver": DRIVER,
    "Probes": PROBES,
    "Network": NETWORK,
    "RDMA": RDMA,
    "Host": HOST,
}
"""Kinds by their name, by the heading under which they are described."""

KINDS: Mapping[str, Kind] = {name: kind for family in FAMILIES.values() for name, kind in family.items()}
"""Every kind of fault by its name."""
