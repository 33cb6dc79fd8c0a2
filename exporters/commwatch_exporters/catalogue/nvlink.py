"""Metrics of NVLink: state, traffic and errors of each link."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import GPU, LINK, Limit, Metric, counter, gauge, in_an_hour, info, recent


def _packet_errors(what: str) -> Limit:
    return in_an_hour("nvlink_packet_errors", what, "nvlink_packet_errors_per_hour", inclusive=True)


ROWS: tuple[Metric, ...] = (
    info("nvlink_info", f"{LINK} version remote_type remote_pci_bus_id remote_link",
         "Version and far end of an NVLink.",
         "NVML nvmlDeviceGetNvLinkVersion, GetNvLinkRemoteDeviceType, GetNvLinkRemotePciInfo_v2, field 146"),
    gauge("nvlink_links", GPU, "NVLinks of the GPU, active or not.", "NVML nvmlDeviceGetNvLinkState"),
    gauge("nvlink_switch_links", GPU, "NVLinks of the GPU to NVSwitches.", "NVML field 147"),
    gauge("nvlink_bandwidth_mode", GPU,
          "Bandwidth setting: 0 full, 1 off, 2 minimum, 3 half, 4 three quarters (NVLink 5).",
          "NVML nvmlDeviceGetNvlinkBwMode"),
    gauge("nvlink_link_low_power", LINK, "1 while the link saves power (normal when idle), else 0.",
          "NVML field 167", opt_in=True),
    gauge("nvlink_link_state", LINK, "Link state: 0 inactive, 1 active, 2 sleep, 3 active with traffic disabled.",
          "NVML field 165, or nvmlDeviceGetNvLinkState"),
    gauge("nvlink_link_expected", LINK, "1 for a link that should be active.", "inventory"),
    gauge("nvlink_link_down", f"{LINK} nvswitch",
          "State of an expected link that is not up, only while so: 0 inactive, 3 active with traffic disabled. One "
          "series for most links of a GPU (`link` is several) or for links of all GPUs (`gpu` is all, `pci_bus_id` the "
          "NVSwitch or all). Also of a link that is up again, for 5 min after it went down: if that was three times "
          "within an hour, or an Xid or SXid of a link came with it.",
          "nvlink_link_state, nvlink_link_expected, nvlink_info, nvlink_link_flaps_total"),
    gauge("nvlink_end_down", "device",
          "1 for a GPU or NVSwitch at which a link of `nvlink_link_down` ends: its driver reports the link, too. Of a "
          "link that is up again only for 40 s after it went down.",
          "nvlink_link_down, nvlink_info"),
    counter("nvlink_link_flaps_total", LINK, "Times the link went down, counted over restarts of the daemon.",
            "nvlink_link_state"),
    gauge("nvlink_link_flaps_recent", LINK, "Times the link went down in the last hour; only while there are any.",
          "nvlink_link_state"),
    gauge("nvlink_link_speed_bytes_per_second", LINK, "Line rate, one direction, before FEC and framing.",
          "NVML field 164, or 90", "bytes_per_second", opt_in=True),
    gauge("nvlink_capacity_bytes_per_second", GPU, "Nominal capacity of all expected links, one direction.",
          "expected links times nominal rate", "bytes_per_second"),
    counter("nvlink_transmit_bytes_total", LINK, "Payload bytes sent since GPU reset.",
            "NVML field 202, or 138 (KiB) times 1024", "bytes"),
    counter("nvlink_receive_bytes_total", LINK, "Payload bytes received since GPU reset.",
            "NVML field 204, or 139 (KiB) times 1024", "bytes"),
    counter("nvlink_transmit_raw_bytes_total", LINK, "Bytes sent with protocol overhead since GPU reset.",
            "NVML field 140 (KiB) times 1024", "bytes", opt_in=True),
    counter("nvlink_receive_raw_bytes_total", LINK, "Bytes received with protocol overhead since GPU reset.",
            "NVML field 141 (KiB) times 1024", "bytes", opt_in=True),
    counter("nvlink_transmit_packets_total", LINK, "Packets sent (NVLink 5).", "NVML field 201"),
    counter("nvlink_receive_packets_total", LINK, "Packets received (NVLink 5).", "NVML field 203"),
    counter("nvlink_crc_flit_errors_total", LINK, "Flits resent for CRC errors (NVLink 1 to 4).",
            "NVML field 163, or nvmlDeviceGetNvLinkErrorCounter kind 2"),
    counter("nvlink_crc_data_errors_total", LINK, "Data CRC errors (NVLink 1 to 4).",
            "NVML nvmlDeviceGetNvLinkErrorCounter kind 3"),
    counter("nvlink_replay_errors_total", LINK, "Retransmissions (NVLink 1 to 4).",
            "NVML field 161, or nvmlDeviceGetNvLinkErrorCounter kind 0").judged(
        in_an_hour("nvlink_replays", "replays", "nvlink_replays_per_hour", inclusive=True)),
    counter("nvlink_recovery_errors_total", LINK, "Times the link retrained (NVLink 1 to 4).",
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
    counter("nvlink_receive_remote_errors_total", LINK, "Received packets marked bad by the far side (NVLink 5).",
            "NVML field 209").judged(
        in_an_hour("nvlink_remote_errors", "packets marked bad by the far side", "nvlink_packet_errors_per_hour",
                   inclusive=True)),
    counter("nvlink_receive_general_errors_total", LINK, "Received packets with a header mismatch (NVLink 5).",
            "NVML field 210").judged(
        _packet_errors("header mismatches")),
    counter("nvlink_local_link_integrity_errors_total", LINK, "Times local errors passed their threshold (NVLink 5).",
            "NVML field 211").judged(
        _packet_errors("times that local errors passed their threshold")),
    counter("nvlink_transmit_discards_total", LINK, "Packets discarded before sending (NVLink 5).",
            "NVML field 212").judged(
        _packet_errors("packets discarded before sending")),
    counter("nvlink_recoveries_successful_total", LINK, "Successful link recoveries (NVLink 5).", "NVML field 213"),
    counter("nvlink_recoveries_failed_total", LINK, "Failed link recoveries: the link went down (NVLink 5).",
            "NVML field 214").judged(
        in_an_hour("nvlink_recovery_failed", "failed recoveries")),
    recent("nvlink_recoveries_failed", LINK),
    counter("nvlink_recoveries_total", LINK, "All link recoveries (NVLink 5).", "NVML field 215"),
    counter("nvlink_effective_errors_total", LINK, "Errors left after forward error correction (NVLink 5).",
            "NVML field 219"),
    counter("nvlink_symbol_errors_total", LINK, "Symbol errors in received data (NVLink 5).", "NVML field 221"),
    gauge("nvlink_effective_bit_error_ratio", LINK, "Bit error ratio after forward error correction (NVLink 5).",
          "NVML field 220", "ratio"),
    gauge("nvlink_symbol_bit_error_ratio", LINK, "Symbol bit error ratio (NVLink 5).", "NVML field 222", "ratio"),
    counter("nvlink_raw_errors_total", f"{LINK} lane",
            "Errors before forward error correction, normal (NVLink 5).", "NVML fields 289 and 290"),
    gauge("nvlink_raw_bit_error_ratio", LINK, "Bit error ratio before forward error correction, both lanes (NVLink 5).",
          "NVML field 293", "ratio"),
    gauge("nvlink_lane_raw_bit_error_ratio", f"{LINK} lane",
          "Bit error ratio of one lane before forward error correction (NVLink 5).",
          "NVML fields 291 and 292", "ratio", opt_in=True),
    counter("nvlink_plr_blocks_total", LINK, "Physical layer blocks sent (NVLink 5).", "NVML field 294"),
    counter("nvlink_plr_retry_blocks_total", LINK, "Physical layer blocks resent (NVLink 5).", "NVML field 295"),
    counter("nvlink_fec_corrected_total", f"{LINK} bin",
            "Codewords corrected by FEC in 16 bins; by their names, higher bins had more wrong symbols (NVLink 5).",
            "NVML fields 235 to 250", opt_in=True),
    gauge("c2c_links", GPU, "Chip-to-chip links to a Grace CPU.", "NVML field 170"),
    gauge("c2c_link_up", LINK, "1 while the chip-to-chip link is active, else 0.", "NVML field 171"),
    gauge("c2c_link_speed_bytes_per_second", LINK, "Highest rate of the chip-to-chip link.", "NVML field 172 (MB/s)",
          "bytes_per_second"),
    counter("c2c_crc_errors_total", LINK, "CRC error interrupts of the chip-to-chip link.", "NVML field 231"),
    counter("c2c_replays_total", LINK, "Replays on the chip-to-chip link.", "NVML field 232"),
    counter("c2c_replays_back_to_back_total", LINK, "Back-to-back replays, chip-to-chip.", "NVML field 233"),
    gauge("c2c_low_power", LINK, "1 while the chip-to-chip link saves power, else 0.", "NVML field 234"),
)
