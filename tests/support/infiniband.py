"""RDMA devices in a directory, as the kernel lays them out: the formats of the documentation, written by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CX7_COUNTERS: Mapping[str, str] = {
    "port_xmit_data": "1000000000000",
    "port_rcv_data": "2000000000000",
    "port_xmit_packets": "3000000",
    "port_rcv_packets": "4000000",
    "unicast_xmit_packets": "3000001",
    "unicast_rcv_packets": "4000001",
    "multicast_xmit_packets": "5",
    "multicast_rcv_packets": "6",
    "symbol_error": "7",
    "link_error_recovery": "255",
    "link_downed": "1",
    "port_rcv_errors": "8",
    "port_rcv_remote_physical_errors": "9",
    "port_rcv_switch_relay_errors": "0",
    "port_xmit_discards": "10",
    "port_xmit_constraint_errors": "11",
    "port_rcv_constraint_errors": "12",
    "local_link_integrity_errors": "0",
    "excessive_buffer_overrun_errors": "15",
    "VL15_dropped": "13",
    "port_xmit_wait": "2489603687",
}
CX7_HARDWARE: Mapping[str, str] = {
    name: str(100 + place)
    for place, name in enumerate((
        "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
        "req_transport_retries_exceeded", "req_rnr_retries_exceeded", "implied_nak_seq_err", "duplicate_request",
        "out_of_buffer", "req_cqe_error", "resp_cqe_error", "req_cqe_flush_error", "resp_cqe_flush_error",
        "resp_local_length_error", "req_remote_invalid_request", "req_remote_access_errors",
        "resp_remote_access_errors", "rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_dct_connect",
        "lifespan",
    ))
}  # fmt: skip
ROCE_HARDWARE: Mapping[str, str] = {
    **CX7_HARDWARE,
    "rx_icrc_encapsulated": "1",
    "np_ecn_marked_roce_packets": "2",
    "np_cnp_sent": "3",
    "rp_cnp_handled": "4",
    "rp_cnp_ignored": "5",
    "roce_adp_retrans": "6",
    "roce_adp_retrans_to": "7",
    "roce_slow_restart": "8",
    "roce_slow_restart_cnps": "9",
    "roce_slow_restart_trans": "10",
}
EFA_HARDWARE: Mapping[str, str] = {
    "tx_bytes": "1000", "tx_pkts": "10", "rx_bytes": "2000", "rx_pkts": "20", "rx_drops": "1",
    "send_bytes": "300", "send_wrs": "3", "recv_bytes": "400", "recv_wrs": "4",
    "rdma_read_wrs": "5", "rdma_read_bytes": "500", "rdma_read_wr_err": "6", "rdma_read_resp_bytes": "600",
    "rdma_write_wrs": "7", "rdma_write_bytes": "700", "rdma_write_wr_err": "8", "rdma_write_recv_bytes": "800",
    "retrans_bytes": "900", "retrans_pkts": "9", "retrans_timeout_events": "2", "unresponsive_remote_events": "0",
    "impaired_remote_conn_events": "0", "lifespan": "10",
}  # fmt: skip
BNXT_HARDWARE: Mapping[str, str] = {
    "active_qps": "1", "rx_pkts": "2", "rx_bytes": "3", "tx_pkts": "4", "tx_bytes": "5", "rx_roce_errors": "6",
    "rx_roce_discards": "7", "to_retransmits": "8", "seq_err_naks_rcvd": "9", "max_retry_exceeded": "10",
    "rnr_naks_rcvd": "11", "dup_req": "12", "oos_drop_count": "13", "rx_out_of_buffer": "14", "rx_cnp_pkts": "15",
    "tx_cnp_pkts": "16", "rx_ecn_marked_pkts": "17", "lifespan": "10",
}  # fmt: skip
IRDMA_HARDWARE: Mapping[str, str] = {
    "ip4InOctets": "1", "ip4OutPkts": "2", "tcpRetransSegs": "3", "InRdmaWrites": "4", "cnpHandled": "5",
    "cnpIgnored": "6", "cnpSent": "7", "RxECNMrkd": "8", "lifespan": "10",
}  # fmt: skip

ATTRIBUTES: Mapping[str, str] = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "link_layer": "InfiniBand",
    "rate": "400 Gb/sec (4X NDR)",
    "lid": "0x1a",
    "sm_lid": "0x1",
}


def add_device(
    sysfs: Path,
    name: str = "mlx5_0",
    address: str = "0000:18:00.0",
    driver: str = "mlx5_core",
    hca_type: str = "MT4129",
    firmware: str = "28.39.1002",
    device_counters: Mapping[str, str] = {},
) -> Path:
    """Make an RDMA device without ports; returns its directory."""
    pci = sysfs / "devices/pci0000:15/0000:15:01.0" / address
    home = pci / "infiniband" / name
    (home / "ports").mkdir(parents=True)
    if not (pci / "driver").is_symlink():
        (sysfs / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (pci / "driver").symlink_to(sysfs / "bus/pci/drivers" / driver)
    (home / "device").symlink_to("../..")
    write(home, {"node_type": "1: CA", "fw_ver": firmware, "hca_type": hca_type})
    if device_counters:
        write(home / "hw_counters", device_counters)
    listing = sysfs / "class/infiniband"
    listing.mkdir(parents=True, exist_ok=True)
    (listing / name).symlink_to(os.path.relpath(home, listing))
    return home


def add_port(
    home: Path,
    port: int = 1,
    attributes: Mapping[str, str | None] = {},
    counters: Mapping[str, str | bytes] = CX7_COUNTERS,
    hardware: Mapping[str, str | bytes] = CX7_HARDWARE,
    netdev: str = "",
) -> Path:
    """Make a port of a device; returns its directory."""
    path = home / "ports" / str(port)
    write(path, {**ATTRIBUTES, **attributes})
    write(path / "counters", counters)
    write(path / "hw_counters", hardware)
    if netdev:
        write(path / "gid_attrs/ndevs", {"0": netdev})
    return path


def write(folder: Path, texts: Mapping[str, str | bytes | None]) -> None:
    """Write files of one line each in place, as a driver changes them; None leaves a file out."""
    for name, text in texts.items():
        if text is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
