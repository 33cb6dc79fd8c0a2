"""Metrics of RDMA ports, InfiniBand and RoCE."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import PORT, Metric, counter, gauge, in_a_minute, in_an_hour, info, sustained

_PORTS = "sysfs /sys/class/infiniband/*/ports"
_COUNTERS = f"{_PORTS}/*/counters"
_HARDWARE = f"{_PORTS}/*/hw_counters"
_STATE_SINCE = "rdma_port_state since daemon start"

_BITS_4, _BITS_8, _BITS_16, _BITS_32 = 2**4 - 1, 2**8 - 1, 2**16 - 1, 2**32 - 1


def _sticky(name: str, help_text: str, file: str, limit: int) -> Metric:
    """A row of a counter that stays at its largest number."""
    return counter(f"rdma_port_{name}", PORT, f"{help_text} Stops at {limit}.", f"{_COUNTERS}/{file}",
                   saturates_at=limit)


def _event(name: str, help_text: str, files: str) -> Metric:
    """A row of a counter that never ends: 64 bits."""
    return counter(f"rdma_{name}", PORT, help_text, f"{_HARDWARE}/{files}")


def _wrapping(name: str, help_text: str, files: str, labels: str = PORT, opt_in: bool = False) -> Metric:
    """A row of a queue counter of mlx5, which has 32 bits and begins at 0 again; what is exposed goes on growing."""
    return counter(f"rdma_{name}", labels, help_text, f"{_HARDWARE}/{files}", opt_in=opt_in, wraps_at=2**32)


ROWS: tuple[Metric, ...] = (
    info("rdma_port_info", f"{PORT} link_layer lid sm_lid firmware hca_type pci_bus_id netdev",
         "Identity of an RDMA port.",
         "sysfs /sys/class/infiniband/*: link_layer, lid, sm_lid, fw_ver, hca_type, device, gid_attrs/ndevs/0"),
    gauge("rdma_port_state", PORT, "Logical state: 0 no change, 1 down, 2 initialising, 3 armed, 4 active, 5 deferred.",
          f"{_PORTS}/*/state"),
    gauge("rdma_port_phys_state", PORT,
          "Physical state: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 error recovery, 7 test.",
          f"{_PORTS}/*/phys_state"),
    gauge("rdma_port_speed_bytes_per_second", PORT,
          "Link speed, one direction; absent while down or unknown to the kernel.",
          f"{_PORTS}/*/rate, Gbit/s times 125000000", "bytes_per_second"),
    gauge("rdma_port_width_lanes", PORT, "Lanes of the link; absent like the speed.", f"{_PORTS}/*/rate", "lanes"),
    gauge("rdma_port_virtual_functions", PORT,
          "Virtual functions and subfunctions of the adapter, which count for themselves; absent without any.",
          "sysfs /sys/class/infiniband/*/device: virtfn*, *.sf.*"),
    gauge("rdma_port_expected", PORT, "1 for a port that should be active.", "inventory"),
    gauge("rdma_port_speed_expected_bytes_per_second", PORT,
          "Fastest stable speed of an expected port, one direction; of a rail at least that of its equals.",
          "inventory", "bytes_per_second"),
    gauge("rdma_port_gids", PORT, "Filled entries of the port's GID table.", f"{_PORTS}/*/gids"),
    gauge("rdma_port_gid_index", f"{PORT} kind",
          "Lowest GID index of this kind: infiniband, roce_v1, roce_v2_ipv4, roce_v2_ipv6, roce_v2_link_local.",
          f"{_PORTS}/*/{{gids,gid_attrs/types}}"),
    counter("rdma_port_flaps_total", PORT, "Times the port left the active state.", _STATE_SINCE),
    gauge("rdma_port_flaps_recent", PORT,
          "Times the port or its interface went down in the last hour, not on purpose; only while there are any.",
          "rdma_port_flaps_total, rdma_port_link_downed_total, of the interface as ethernet_flaps_recent"),
    counter("rdma_port_down_seconds_total", PORT, "Time the port was not active after it had been.",
            _STATE_SINCE, "seconds"),
    counter("rdma_port_transmit_bytes_total", PORT, "Bytes sent; RoCE: RDMA only.",
            f"{_COUNTERS}/port_xmit_data times 4", "bytes"),
    counter("rdma_port_receive_bytes_total", PORT, "Bytes received; RoCE: RDMA only.",
            f"{_COUNTERS}/port_rcv_data times 4", "bytes"),
    counter("rdma_port_transmit_packets_total", PORT, "Packets sent.", f"{_COUNTERS}/port_xmit_packets"),
    counter("rdma_port_receive_packets_total", PORT, "Packets received.", f"{_COUNTERS}/port_rcv_packets"),
    counter("rdma_port_transmit_unicast_packets_total", PORT, "Unicast packets sent.",
            f"{_COUNTERS}/unicast_xmit_packets", opt_in=True),
    counter("rdma_port_receive_unicast_packets_total", PORT, "Unicast packets received.",
            f"{_COUNTERS}/unicast_rcv_packets", opt_in=True),
    counter("rdma_port_transmit_multicast_packets_total", PORT, "Multicast packets sent.",
            f"{_COUNTERS}/multicast_xmit_packets", opt_in=True),
    counter("rdma_port_receive_multicast_packets_total", PORT, "Multicast packets received.",
            f"{_COUNTERS}/multicast_rcv_packets", opt_in=True),
    _sticky("symbol_errors_total", "Symbol errors of the physical link.", "symbol_error", _BITS_16).judged(
        in_an_hour("rdma_errors", "symbol errors", "rdma_symbol_errors_per_hour")),
    _sticky("link_error_recovery_total", "Times the link recovered from an error.", "link_error_recovery",
            _BITS_8).judged(
        in_an_hour("rdma_errors", "recoveries of the link", "rdma_link_recoveries_per_hour"),
        in_a_minute("rdma_errors", "recoveries of the link", "rdma_link_recoveries_per_minute")),
    _sticky("link_downed_total", "Times the link went down.", "link_downed", _BITS_8),
    _sticky("receive_errors_total", "Packets received with errors.", "port_rcv_errors", _BITS_16).judged(
        in_an_hour("rdma_errors", "packets received with errors", "rdma_packet_errors_per_hour")),
    _sticky("receive_remote_physical_errors_total", "Packets marked bad before this link.",
            "port_rcv_remote_physical_errors", _BITS_16).judged(
        in_an_hour("rdma_errors_upstream", "packets that were marked bad before", "rdma_packet_errors_per_hour")),
    _sticky("transmit_discards_total", "Packets dropped before sending (congestion, link down).",
            "port_xmit_discards", _BITS_16).judged(
        sustained("rdma_dropping", "packets dropped before sending", "rdma_drops_per_minute", per_seconds=60.0)),
    _sticky("transmit_constraint_errors_total", "Packets not sent by a partition or rate rule.",
            "port_xmit_constraint_errors", _BITS_8).judged(
        in_an_hour("rdma_packets_refused", "packets not sent", "rdma_packet_errors_per_hour")),
    _sticky("receive_constraint_errors_total", "Received packets dropped by a partition or rate rule.",
            "port_rcv_constraint_errors", _BITS_8).judged(
        in_an_hour("rdma_packets_refused", "packets received and dropped", "rdma_packet_errors_per_hour")),
    _sticky("local_link_integrity_errors_total", "Times link errors passed the port's threshold.",
            "local_link_integrity_errors", _BITS_4).judged(
        in_an_hour("rdma_errors", "times the link passed its own error threshold")),
    _sticky("excessive_buffer_overrun_errors_total", "Times the peer sent more than flow control allows.",
            "excessive_buffer_overrun_errors", _BITS_4).judged(
        in_an_hour("rdma_errors", "buffer overruns")),
    _sticky("vl15_dropped_total", "Management packets dropped.", "VL15_dropped", _BITS_16),
    _sticky("transmit_wait_ticks_total", "Ticks with data but no credit; a tick's length depends on the adapter.",
            "port_xmit_wait", _BITS_32),
    _wrapping("out_of_sequence_total", "Packets that came out of order.", "out_of_sequence, oos_drop_count"),
    _wrapping("packet_sequence_errors_total", "Answers that reported a gap in the packets sent.",
              "packet_seq_err, seq_err_naks_rcvd").judged(
        sustained("rdma_retransmitting", "answers that reported a gap", "rdma_sequence_errors_per_second")),
    _wrapping("ack_timeouts_total", "Times packets were resent because no answer came.",
              "local_ack_timeout_err, to_retransmits").judged(
        sustained("rdma_retransmitting", "times no answer came", "rdma_ack_timeouts_per_minute", per_seconds=60.0)),
    _wrapping("rnr_retries_total", "Answers that the other end is not ready to receive.",
              "rnr_nak_retry_err, rnr_naks_rcvd").judged(
        sustained("rdma_retransmitting", "times the other end was not ready", "rdma_rnr_retries_per_minute",
                  per_seconds=60.0)),
    _wrapping("retries_exceeded_total", "Connections given up after the last retry, by reason.",
              "req_transport_retries_exceeded, req_rnr_retries_exceeded, max_retry_exceeded", f"{PORT} kind").judged(
        in_an_hour("rdma_connections_lost", "connections given up")),
    _wrapping("implied_nak_sequence_errors_total", "Answers whose number showed lost packets.",
              "implied_nak_seq_err").judged(
        sustained("rdma_retransmitting", "answers that showed a gap", "rdma_sequence_errors_per_second")),
    _wrapping("duplicate_requests_total", "Requests that came twice.", "duplicate_request, dup_req"),
    _wrapping("out_of_buffer_total", "Packets dropped for lack of receive buffers.",
              "out_of_buffer, rx_out_of_buffer"),
    _wrapping("completion_errors_total",
              "Failed work requests by kernel name; flush errors also rise at a normal job end.",
              "req_*_error, resp_*_error", f"{PORT} kind"),
    _event("icrc_errors_total", "RoCE packets with a wrong checksum.", "rx_icrc_encapsulated").judged(
        in_an_hour("rdma_errors", "RoCE packets with a wrong check sum", "rdma_packet_errors_per_hour")),
    _event("ecn_marked_total", "RoCE packets received with a congestion mark.",
           "np_ecn_marked_roce_packets, RxECNMrkd, rx_ecn_marked_pkts").judged(
        sustained("rdma_congested", "packets received with a congestion mark",
                  "rdma_congestion_notifications_per_second")),
    _event("cnp_sent_total", "Congestion notifications sent.", "np_cnp_sent, cnpSent, tx_cnp_pkts"),
    _event("cnp_handled_total", "Congestion notifications obeyed.", "rp_cnp_handled, cnpHandled, rx_cnp_pkts").judged(
        sustained("rdma_congested", "congestion notifications obeyed", "rdma_congestion_notifications_per_second")),
    _event("cnp_ignored_total", "Congestion notifications ignored.", "rp_cnp_ignored, cnpIgnored"),
    _wrapping("adaptive_retransmissions_total", "Adaptive retransmissions.", "roce_adp_retrans").judged(
        sustained("rdma_retransmitting", "adaptive retransmissions", "rdma_sequence_errors_per_second")),
    _wrapping("adaptive_retransmission_timeouts_total", "Time-outs of adaptive retransmission.", "roce_adp_retrans_to"),
    _wrapping("slow_restarts_total", "Times slow restart was used.", "roce_slow_restart").judged(
        sustained("rdma_retransmitting", "slow restarts", "rdma_slow_restarts_per_second")),
    _wrapping("slow_restart_cnps_total", "Congestion notifications made by slow restart.", "roce_slow_restart_cnps"),
    _wrapping("slow_restart_transitions_total", "Changes to the state of slow restart.", "roce_slow_restart_trans"),
    _wrapping("receive_write_requests_total", "RDMA writes received.", "rx_write_requests", opt_in=True),
    _wrapping("receive_read_requests_total", "RDMA reads received.", "rx_read_requests", opt_in=True),
    _wrapping("receive_atomic_requests_total", "Atomic operations received.", "rx_atomic_requests", opt_in=True),
    _wrapping("receive_dct_connects_total", "Dynamically connected transport connections received.",
              "rx_dct_connect", opt_in=True),
    counter("rdma_transmit_bytes_total", PORT, "Bytes sent (adapters without port counters).",
            f"{_HARDWARE}/tx_bytes", "bytes"),
    counter("rdma_receive_bytes_total", PORT, "Bytes received (adapters without port counters).",
            f"{_HARDWARE}/rx_bytes", "bytes"),
    _event("transmit_packets_total", "Packets sent.", "tx_pkts"),
    _event("receive_packets_total", "Packets received.", "rx_pkts"),
    _event("receive_drops_total", "Packets received and dropped.", "rx_drops, rx_roce_discards").judged(
        sustained("rdma_dropping", "packets received and dropped", "rdma_drops_per_minute", per_seconds=60.0)),
    counter("rdma_retransmitted_bytes_total", PORT, "Bytes resent.", f"{_HARDWARE}/retrans_bytes", "bytes"),
    _event("retransmitted_packets_total", "Packets resent.", "retrans_pkts"),
    _event("retransmission_timeouts_total", "Times packets were resent because no answer came.",
           "retrans_timeout_events").judged(
        sustained("rdma_retransmitting", "times no answer came", "rdma_ack_timeouts_per_minute", per_seconds=60.0)),
    _event("unresponsive_remote_total", "Times the peer did not answer at all.", "unresponsive_remote_events").judged(
        in_an_hour("rdma_connections_lost", "times the other end did not answer at all"),
        sustained("rdma_retransmitting", "times the other end did not answer at all", "rdma_remote_events_per_minute",
                  per_seconds=60.0)),
    _event("impaired_connections_total", "Times a connection became bad: EFA holds its rate down.",
           "impaired_remote_conn_events").judged(
        sustained("rdma_retransmitting", "connections that became bad", "rdma_remote_events_per_minute",
                  per_seconds=60.0)),
    counter("rdma_work_request_errors_total", f"{PORT} kind", "Failed RDMA reads and writes by kernel name.",
            f"{_HARDWARE}/rdma_read_wr_err, rdma_write_wr_err"),
    counter("rdma_read_bytes_total", PORT, "Bytes fetched by RDMA reads.", f"{_HARDWARE}/rdma_read_bytes", "bytes",
            opt_in=True),
    counter("rdma_read_response_bytes_total", PORT, "Bytes sent in answer to RDMA reads.",
            f"{_HARDWARE}/rdma_read_resp_bytes", "bytes", opt_in=True),
    counter("rdma_write_bytes_total", PORT, "Bytes sent by RDMA writes.", f"{_HARDWARE}/rdma_write_bytes", "bytes",
            opt_in=True),
    counter("rdma_write_receive_bytes_total", PORT, "Bytes received by RDMA writes.",
            f"{_HARDWARE}/rdma_write_recv_bytes", "bytes", opt_in=True),
)
