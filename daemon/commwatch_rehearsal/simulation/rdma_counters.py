"""The counters of an RDMA port of the mlx5 driver: their files, widths and units."""

from __future__ import annotations

from dataclasses import dataclass

_WORD_BYTES = 4
"""The unit of ``port_xmit_data`` and ``port_rcv_data``."""
_PACKET_BYTES = 4096
_REQUEST_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Counter:
    name: str
    bits: int = 64
    wraps: bool = False
    """Whether it goes on from 0 after its maximum, as queue counters do; the others stay there."""
    sent: int = 0
    """Bytes sent for each increment; 0: traffic does not move it."""
    received: int = 0

    @property
    def maximum(self) -> int:
        """The greatest number that fits."""
        return int(2**self.bits - 1)


PORT_COUNTERS = (
    Counter("port_xmit_data", sent=_WORD_BYTES),
    Counter("port_rcv_data", received=_WORD_BYTES),
    Counter("port_xmit_packets", sent=_PACKET_BYTES),
    Counter("port_rcv_packets", received=_PACKET_BYTES),
    Counter("unicast_xmit_packets", sent=_PACKET_BYTES),
    Counter("unicast_rcv_packets", received=_PACKET_BYTES),
    Counter("multicast_xmit_packets"),
    Counter("multicast_rcv_packets"),
    Counter("symbol_error", 16),
    Counter("link_error_recovery", 8),
    Counter("link_downed", 8),
    Counter("port_rcv_errors", 16),
    Counter("port_rcv_remote_physical_errors", 16),
    Counter("port_rcv_switch_relay_errors", 16),
    Counter("port_xmit_discards", 16),
    Counter("port_xmit_constraint_errors", 8),
    Counter("port_rcv_constraint_errors", 8),
    Counter("local_link_integrity_errors", 4),
    Counter("excessive_buffer_overrun_errors", 4),
    Counter("VL15_dropped", 16),
    Counter("port_xmit_wait", 32),
)
"""``ports/N/counters``."""

QUEUE_COUNTERS = (
    Counter("rx_write_requests", 32, wraps=True, received=_REQUEST_BYTES),
    *(
        Counter(name, 32, wraps=True)
        for name in (
            "rx_read_requests",
            "rx_atomic_requests",
            "rx_dct_connect",
            "out_of_buffer",
            "out_of_sequence",
            "duplicate_request",
            "rnr_nak_retry_err",
            "packet_seq_err",
            "implied_nak_seq_err",
            "local_ack_timeout_err",
            "req_transport_retries_exceeded",
            "req_rnr_retries_exceeded",
            "resp_local_length_error",
            "resp_cqe_error",
            "req_cqe_error",
            "req_remote_invalid_request",
            "req_remote_access_errors",
            "resp_remote_access_errors",
            "resp_cqe_flush_error",
            "req_cqe_flush_error",
        )
    ),
)
"""``ports/N/hw_counters`` of every port."""

ROCE_COUNTERS = tuple(
    Counter(name)
    for name in (
        "rx_icrc_encapsulated",
        "np_ecn_marked_roce_packets",
        "np_cnp_sent",
        "rp_cnp_handled",
        "rp_cnp_ignored",
        "roce_adp_retrans",
        "roce_adp_retrans_to",
        "roce_slow_restart",
        "roce_slow_restart_cnps",
        "roce_slow_restart_trans",
    )
)
"""Further files of ``hw_counters`` on Ethernet."""

COUNTER_NAMES = tuple(counter.name for counter in (*PORT_COUNTERS, *QUEUE_COUNTERS, *ROCE_COUNTERS))
"""Every counter that a fault can move."""
