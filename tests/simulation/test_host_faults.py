"""Faults of adapters, PCI devices, NVSwitches and services: what they may name, and how they are refused."""

from __future__ import annotations

import pytest

from commwatch.errors import ConfigError
from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.faults.parse import parse_faults
from commwatch_rehearsal.simulation.presets import PRESETS
from support.passes import in_one_pass


def parse(text: str, preset: str = "h100x8ndr") -> Fault:
    (fault,) = parse_faults(text, "faults.yaml", PRESETS[preset], 0.0, 0.0)
    return fault


def test_an_rdma_fault_names_a_device_and_perhaps_a_port() -> None:
    """Without a port it strikes all of them."""
    fault = parse("- {fault: rdma_errors, device: mlx5_3, port: 1, counter: symbol_error, rate: 6/min}")

    assert (fault.device, fault.port, fault.words, fault.settings) == (
        "mlx5_3", 1, {"counter": "symbol_error"}, {"rate": 0.1},
    )  # fmt: skip
    assert parse("- {fault: rdma_port_down, device: mlx5_3}").port is None


def test_an_adapter_is_named_by_its_interface_or_its_rdma_device() -> None:
    """Both lead to the address of the function."""
    rest = "severity: fatal, error: DLP, rate: 1/d"
    addresses = [parse(f"- {{fault: pcie_aer, nic: {name}, {rest}}}").device for name in ("ens11f0np0", "mlx5_8")]

    assert addresses == [PRESETS["h100x8ndr"].interfaces[0].pci_address] * 2


@in_one_pass(
    "text, preset, key, problem",
    [
        ("rdma_port_down", "h100x8ndr", "device", "missing"),
        ("rdma_port_down, device: mlx5_77", "h100x8ndr", "device", "it has mlx5_0, "),
        ("rdma_port_down, device: mlx5_0, port: 2", "h100x8ndr", "port", "from 1 to 1"),
        ("rdma_port_down, device: mlx5_0", "a10x2", "fault", "no RDMA device"),
        ("rdma_errors, device: mlx5_0, counter: nosuch, rate: 1", "h100x8ndr", "counter", "expected port_xmit_data"),
        ("rdma_errors, device: mlx5_0, counter: np_cnp_sent, rate: 1", "h100x8ndr", "counter", "on Ethernet only"),
        ("rdma_saturated, device: mlx5_0", "h100x8ndr", "counter", "missing"),
        ("pcie_aer, severity: fatal, error: DLP, rate: 1", "h100x8", "device", "one of device, gpu and nic"),
        ("pcie_aer, gpu: 0, nic: ens1np0, severity: fatal, error: DLP, rate: 1", "h100x8", "device", "one of device"),
        ("pcie_aer, gpu: 8, severity: fatal, error: DLP, rate: 1", "h100x8", "gpu", "from 0 to 7"),
        ("pcie_aer, nic: eth9, severity: fatal, error: DLP, rate: 1", "h100x8", "nic", "it has ens1np0, ens2np0"),
        ("pcie_aer, gpu: 0, severity: fatal, error: RxErr, rate: 1", "h100x8", "error", "no fatal error; these are"),
        ("sxid, sxid: 12028", "h100x8", "nvswitch", "missing"),
        ("sxid, nvswitch: 4, sxid: 12028", "h100x8", "nvswitch", "from 0 to 3"),
        ("sxid, nvswitch: 0, sxid: 12028", "rtx3090x4", "fault", "no NVSwitch"),
        ("service_stopped, service: sshd", "h100x8", "service", "nv-fabricmanager or nvidia-persistenced"),
        ("kernel_log_unreadable, gpu: 0", "h100x8", "gpu", "unknown key"),
    ],
)
def test_a_fault_that_the_node_cannot_have_is_refused(text: str, preset: str, key: str, problem: str) -> None:
    """The error names the key and what would be right."""
    with pytest.raises(ConfigError) as caught:
        parse(f"- {{fault: {text}}}", preset)

    assert caught.value.key == key
    assert problem in str(caught.value)
