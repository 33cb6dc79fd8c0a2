"""Metrics of NVLink: state, traffic and errors of each link."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, LINK, Limit, Metric, counter, gauge, in_an_hour, info

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

def _packet_errors(what: str) -> Limit:
    return in_an_hour("nvlink_packet_errors", what, "nvlink_packet_errors_per_hour", reached=True)


ROWS: tuple[Metric, ...] = (
    info("nvlink_info", f"{LINK} version remote_type remote_pci_bus_id remote_link",
         "What an NVLink is and what it leads to; the value is always 1.",
         "NVML nvmlDeviceGetNvLinkVersion, GetNvLinkRemoteDeviceType, GetNvLinkRemotePciInfo_v2, field 146"),
    gauge("nvlink_links", GPU, "NVLinks that the GPU has, active or not.",
          "NVML nvmlDeviceGetNvLinkState, links counted"),
    gauge("nvlink_switch_links", GPU, "NVLinks of the GPU that lead to an NVSwitch.", "NVML field 147"),
    gauge("nvlink_bandwidth_mode", GPU,
          "Bandwidth that the links are set to: 0 full, 1 off, 2 minimum, 3 half, 4 three quarters (NVLink 5).",
          "NVML nvmlDeviceGetNvlinkBwMode"),
    gauge("nvlink_link_low_power", LINK, "1 while the link saves power, which is normal when idle, else 0.",
          "NVML field 167", opt_in=True),
    gauge("nvlink_link_state", LINK,
          "State of the link: 0 inactive, 1 active, 2 sleep, 3 active with traffic disabled.",
          "NVML field 165, or nvmlDeviceGetNvLinkState"),
    gauge("nvlink_link_expected", LINK, "1 for a link that was active for the learning time and so is expected.",
          "inventory kept in the state directory"),
    gauge("nvlink_link_speed_bytes_per_second", LINK, "Line rate of the link, one direction, before FEC and framing.",
          "NVML field 164, or 90", "bytes_per_second", opt_in=True),
    gauge("nvlink_capacity_bytes_per_second", GPU,
          "Nominal capacity of the expected links together, one direction; the denominator of the utilisation.",
          "expected links times nominal rate per link", "bytes_per_second"),
    counter("nvlink_transmit_bytes_total", LINK, "Payload bytes sent over the link since GPU reset.",
            "NVML field 202, or 138 (KiB) times 1024", "bytes"),
    counter("nvlink_receive_bytes_total", LINK, "Payload bytes received over the link since GPU reset.",
            "NVML field 204, or 139 (KiB) times 1024", "bytes"),
    counter("nvlink_transmit_raw_bytes_total", LINK,
            "Bytes sent over the link with protocol overhead, since GPU reset.",
            "NVML field 140 (KiB) times 1024", "bytes", opt_in=True),
    counter("nvlink_receive_raw_bytes_total", LINK,
            "Bytes received over the link with protocol overhead, since GPU reset.",
            "NVML field 141 (KiB) times 1024", "bytes", opt_in=True),
    counter("nvlink_transmit_packets_total", LINK, "Packets sent over the link (NVLink 5).", "NVML field 201"),
    counter("nvlink_receive_packets_total", LINK, "Packets received over the link (NVLink 5).", "NVML field 203"),
    counter("nvlink_crc_flit_errors_total", LINK, "Flits that failed CRC and were sent again (NVLink 1 to 4).",
            "NVML field 163, or nvmlDeviceGetNvLinkErrorCounter kind 2"),
    counter("nvlink_crc_data_errors_total", LINK, "Data CRC errors (NVLink 1 to 4).",
            "NVML nvmlDeviceGetNvLinkErrorCounter kind 3"),
    counter("nvlink_replay_errors_total", LINK, "Retransmissions on the link (NVLink 1 to 4).",
            "NVML field 161, or nvmlDeviceGetNvLinkErrorCounter kind 0").judged(
        in_an_hour("nvlink_replays", "replays", "nvlink_replays_per_hour", reached=True)),
    counter("nvlink_recovery_errors_total", LINK, "Times the link went through retraining (NVLink 1 to 4).",
            "NVML field 162, or nvmlDeviceGetNvLinkErrorCounter kind 1"),
    counter("nvlink_ecc_data_errors_total", LINK, "Data ECC errors (NVLink 1 to 4).",
            "NVML nvmlDeviceGetNvLinkErrorCounter kind 4").judged(
        _packet_errors("ECC errors")),
    counter("nvlink_malformed_packets_total", LINK, "Malformed packets received (NVLink 5).", "NVML field 206").judged(
        _packet_errors("malformed packets")),
    counter("nvlink_buffer_overrun_errors_total", LINK, "Received packets dropped for a buffer overrun (NVLink 5).",
            "NVML field 207").judged(
        _packet_errors("packets dropped for a buffer overrun")),
    counter("nvlink_receive_errors_total", LINK, "Received packets with errors (NVLink 5).", "NVML field 208").judged(
        _packet_errors("packets received with errors")),
    counter("nvlink_receive_remote_errors_total", LINK, "Received packets that the far side marked bad (NVLink 5).",
            "NVML field 209").judged(
        in_an_hour("nvlink_remote_errors", "packets marked bad by the far side", "nvlink_packet_errors_per_hour",
                   reached=True)),
    counter("nvlink_receive_general_errors_total", LINK, "Received packets with a header mismatch (NVLink 5).",
            "NVML field 210").judged(
        _packet_errors("header mismatches")),
    counter("nvlink_local_link_integrity_errors_total", LINK, "Times local errors passed their threshold (NVLink 5).",
            "NVML field 211").judged(
        _packet_errors("times that local errors passed their threshold")),
    counter("nvlink_transmit_discards_total", LINK, "Packets discarded before sending (NVLink 5).",
            "NVML field 212").judged(
        _packet_errors("packets discarded before sending")),
    counter("nvlink_recoveries_successful_total", LINK, "Link recoveries that succeeded (NVLink 5).", "NVML field 213"),
    counter("nvlink_recoveries_failed_total", LINK, "Link recoveries that failed: the link went down (NVLink 5).",
            "NVML field 214").judged(
        in_an_hour("nvlink_recovery_failed", "failed recoveries")),
    counter("nvlink_recoveries_total", LINK, "All link recoveries (NVLink 5).", "NVML field 215"),
    counter("nvlink_effective_errors_total", LINK, "Errors left after forward error correction (NVLink 5).",
            "NVML field 219"),
    counter("nvlink_symbol_errors_total", LINK, "Symbol errors in received data (NVLink 5).", "NVML field 221"),
    gauge("nvlink_effective_bit_error_ratio", LINK, "Bit error ratio after forward error correction (NVLink 5).",
          "NVML field 220, mantissa and exponent decoded", "ratio"),
    gauge("nvlink_symbol_bit_error_ratio", LINK, "Symbol bit error ratio (NVLink 5).",
          "NVML field 222, mantissa and exponent decoded", "ratio"),
    counter("nvlink_raw_errors_total", f"{LINK} lane",
            "Errors before forward error correction, which are normal (NVLink 5).", "NVML fields 289 and 290"),
    gauge("nvlink_raw_bit_error_ratio", LINK,
          "Bit error ratio before forward error correction, both lanes (NVLink 5).",
          "NVML field 293, mantissa and exponent decoded", "ratio"),
    gauge("nvlink_lane_raw_bit_error_ratio", f"{LINK} lane",
          "Bit error ratio of one lane before forward error correction (NVLink 5).",
          "NVML fields 291 and 292, mantissa and exponent decoded", "ratio", opt_in=True),
    counter("nvlink_plr_blocks_total", LINK, "Blocks sent by the physical layer's retransmission (NVLink 5).",
            "NVML field 294"),
    counter("nvlink_plr_retry_blocks_total", LINK, "Blocks that the physical layer sent again (NVLink 5).",
            "NVML field 295"),
    counter("nvlink_fec_corrected_total", f"{LINK} bin",
            "What forward error correction corrected, in 16 bins; the higher the bin, the more symbols of a codeword "
            "were wrong, as the names suggest (NVLink 5).", "NVML fields 235 to 250", opt_in=True),
    gauge("c2c_links", GPU, "Chip-to-chip links between the GPU and a Grace CPU.", "NVML field 170"),
    gauge("c2c_link_up", LINK, "1 while the chip-to-chip link is active, else 0.", "NVML field 171"),
    gauge("c2c_link_speed_bytes_per_second", LINK, "Highest rate of the chip-to-chip link.", "NVML field 172 (MB/s)",
          "bytes_per_second"),
    counter("c2c_crc_errors_total", LINK, "Interrupts for CRC errors on the chip-to-chip link.", "NVML field 231"),
    counter("c2c_replays_total", LINK, "Replays on the chip-to-chip link.", "NVML field 232"),
    counter("c2c_replays_back_to_back_total", LINK, "Replays that followed on a replay, chip-to-chip.",
            "NVML field 233"),
    gauge("c2c_low_power", LINK, "1 while the chip-to-chip link saves power, else 0.", "NVML field 234"),
)
