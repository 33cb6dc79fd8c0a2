"""The counters of RDMA ports: one row each; a new counter is a row here and one in the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Folder: TypeAlias = Literal["counters", "hw_counters"]

WORD_BYTES: Final = 4
"""The InfiniBand standard counts data in words of this size; so does every driver's ``port_*_data``."""
STUCK_32_BITS: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class RdmaCounter:
    """A number in a file of its own beneath a port."""

    file: str
    """As the kernel names it; the label ``counter`` of ``commwatch_counters_state``."""
    metric: str
    folder: Folder = "counters"
    kind: str = ""
    """Value of the label ``kind``, for a metric that has one."""
    scale: int = 1
    """Factor from the file's unit to the metric's."""
    stuck_at: int | None = None
    """A number of the file that means nothing: a port without the extended counters has 32 bits in place of 64, and
    they stay full after a third of a second of traffic."""
    is_common: bool = True
    """Whether its absence on an adapter should be reported; False for counters that one vendor has."""


def _port(file: str, metric: str, scale: int = 1, stuck_at: int | None = None) -> RdmaCounter:
    return RdmaCounter(file, f"commwatch_rdma_port_{metric}_total", scale=scale, stuck_at=stuck_at)


def _hardware(file: str, metric: str, kind: str = "", is_common: bool = True) -> RdmaCounter:
    return RdmaCounter(file, f"commwatch_rdma_{metric}_total", "hw_counters", kind, is_common=is_common)


def _vendor(file: str, metric: str, kind: str = "") -> RdmaCounter:
    return _hardware(file, metric, kind, is_common=False)


PORT_COUNTERS: Final = (
    _port("port_xmit_data", "transmit_bytes", WORD_BYTES, STUCK_32_BITS),
    _port("port_rcv_data", "receive_bytes", WORD_BYTES, STUCK_32_BITS),
    _port("port_xmit_packets", "transmit_packets", stuck_at=STUCK_32_BITS),
    _port("port_rcv_packets", "receive_packets", stuck_at=STUCK_32_BITS),
    _port("unicast_xmit_packets", "transmit_unicast_packets"),
    _port("unicast_rcv_packets", "receive_unicast_packets"),
    _port("multicast_xmit_packets", "transmit_multicast_packets"),
    _port("multicast_rcv_packets", "receive_multicast_packets"),
    _port("symbol_error", "symbol_errors"),
    _port("link_error_recovery", "link_error_recovery"),
    _port("link_downed", "link_downed"),
    _port("port_rcv_errors", "receive_errors"),
    _port("port_rcv_remote_physical_errors", "receive_remote_physical_errors"),
    _port("port_xmit_discards", "transmit_discards"),
    _port("port_xmit_constraint_errors", "transmit_constraint_errors"),
    _port("port_rcv_constraint_errors", "receive_constraint_errors"),
    _port("local_link_integrity_errors", "local_link_integrity_errors"),
    _port("excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors"),
    _port("VL15_dropped", "vl15_dropped"),
    _port("port_xmit_wait", "transmit_wait_ticks"),
)
"""Those of the InfiniBand standard. ``port_rcv_switch_relay_errors`` means nothing on an adapter."""

HARDWARE_COUNTERS: Final = (
    _hardware("out_of_sequence", "out_of_sequence"),
    _hardware("packet_seq_err", "packet_sequence_errors"),
    _hardware("local_ack_timeout_err", "ack_timeouts"),
    _hardware("rnr_nak_retry_err", "rnr_retries"),
    _hardware("req_transport_retries_exceeded", "retries_exceeded", "transport"),
    _hardware("req_rnr_retries_exceeded", "retries_exceeded", "rnr"),
    _hardware("implied_nak_seq_err", "implied_nak_sequence_errors"),
    _hardware("duplicate_request", "duplicate_requests"),
    _hardware("out_of_buffer", "out_of_buffer"),
    *(
        _hardware(name, "completion_errors", name)
        for name in (
            "req_cqe_error",
            "resp_cqe_error",
            "req_cqe_flush_error",
            "resp_cqe_flush_error",
            "resp_local_length_error",
            "req_remote_invalid_request",
            "req_remote_access_errors",
            "resp_remote_access_errors",
        )
    ),
    _hardware("rx_icrc_encapsulated", "icrc_errors"),
    _hardware("np_ecn_marked_roce_packets", "ecn_marked"),
    _hardware("np_cnp_sent", "cnp_sent"),
    _hardware("rp_cnp_handled", "cnp_handled"),
    _hardware("rp_cnp_ignored", "cnp_ignored"),
    _hardware("roce_adp_retrans", "adaptive_retransmissions"),
    _hardware("roce_adp_retrans_to", "adaptive_retransmission_timeouts"),
    _hardware("roce_slow_restart", "slow_restarts"),
    _hardware("roce_slow_restart_cnps", "slow_restart_cnps"),
    _hardware("roce_slow_restart_trans", "slow_restart_transitions"),
    _hardware("rx_write_requests", "receive_write_requests"),
    _hardware("rx_read_requests", "receive_read_requests"),
    _hardware("rx_atomic_requests", "receive_atomic_requests"),
    _hardware("rx_dct_connect", "receive_dct_connects"),
)
"""Those of mlx5. Its optional counters, which the ``rdma`` tool switches on, have no files."""

VENDOR_COUNTERS: Final = (
    # EFA, and for the first four bnxt_re.
    _vendor("tx_bytes", "transmit_bytes"),
    _vendor("rx_bytes", "receive_bytes"),
    _vendor("tx_pkts", "transmit_packets"),
    _vendor("rx_pkts", "receive_packets"),
    _vendor("rx_drops", "receive_drops"),
    _vendor("retrans_bytes", "retransmitted_bytes"),
    _vendor("retrans_pkts", "retransmitted_packets"),
    _vendor("retrans_timeout_events", "retransmission_timeouts"),
    _vendor("unresponsive_remote_events", "unresponsive_remote"),
    _vendor("impaired_remote_conn_events", "impaired_connections"),
    _vendor("rdma_read_wr_err", "work_request_errors", "read"),
    _vendor("rdma_write_wr_err", "work_request_errors", "write"),
    _vendor("rdma_read_bytes", "read_bytes"),
    _vendor("rdma_read_resp_bytes", "read_response_bytes"),
    _vendor("rdma_write_bytes", "write_bytes"),
    _vendor("rdma_write_recv_bytes", "write_receive_bytes"),
    # bnxt_re, where a counter means what one of mlx5 or EFA does.
    _vendor("to_retransmits", "ack_timeouts"),
    _vendor("seq_err_naks_rcvd", "packet_sequence_errors"),
    _vendor("rnr_naks_rcvd", "rnr_retries"),
    _vendor("max_retry_exceeded", "retries_exceeded", "transport"),
    _vendor("oos_drop_count", "out_of_sequence"),
    _vendor("dup_req", "duplicate_requests"),
    _vendor("rx_out_of_buffer", "out_of_buffer"),
    _vendor("rx_roce_discards", "receive_drops"),
    _vendor("rx_ecn_marked_pkts", "ecn_marked"),
    _vendor("tx_cnp_pkts", "cnp_sent"),
    _vendor("rx_cnp_pkts", "cnp_handled"),
    # irdma, likewise.
    _vendor("RxECNMrkd", "ecn_marked"),
    _vendor("cnpSent", "cnp_sent"),
    _vendor("cnpHandled", "cnp_handled"),
    _vendor("cnpIgnored", "cnp_ignored"),
)

COUNTERS: Final = (*PORT_COUNTERS, *HARDWARE_COUNTERS, *VENDOR_COUNTERS)
"""Order of precedence of files that would give the same series: the first that exists is read."""
