"""The row of a node about its RDMA ports and network interfaces."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch.generate.dashboards.panels import (
    Column,
    PanelRow,
    Query,
    Series,
    Table,
    any_is_bad,
    high_is_bad,
    more_is_bad,
)
from commwatch.generate.dashboards.words import CARRIER, EXPECTED, NEEDS_ETHERNET, NEEDS_RDMA, PORT_STATE

_PORT = "device, port"
_RDMA_ERRORS = {
    "commwatch_rdma_port_symbol_errors": "round(increase(%s[1h])) / @rdma_symbol_errors_per_hour@",
    "commwatch_rdma_port_receive_errors": "round(increase(%s[1h])) / @rdma_packet_errors_per_hour@",
    "commwatch_rdma_icrc_errors": "round(increase(%s[1h])) / @rdma_packet_errors_per_hour@",
    "commwatch_rdma_port_local_link_integrity_errors": "round(increase(%s[1h]))",
    "commwatch_rdma_port_excessive_buffer_overrun_errors": "round(increase(%s[1h]))",
    "commwatch_rdma_port_link_error_recovery": "round(increase(%s[1h])) / @rdma_link_recoveries_per_hour@",
}
"""Over the limit that the alert has for each; of two kinds a single one is an alert."""
_RETRANSMISSIONS = {
    "commwatch_rdma_ack_timeouts": "60 * rate(%s[$__rate_interval]) / @rdma_ack_timeouts_per_minute@",
    "commwatch_rdma_retransmission_timeouts": "60 * rate(%s[$__rate_interval]) / @rdma_ack_timeouts_per_minute@",
    "commwatch_rdma_packet_sequence_errors": "rate(%s[$__rate_interval]) / @rdma_sequence_errors_per_second@",
    "commwatch_rdma_implied_nak_sequence_errors": "rate(%s[$__rate_interval]) / @rdma_sequence_errors_per_second@",
    "commwatch_rdma_adaptive_retransmissions": "rate(%s[$__rate_interval]) / @rdma_sequence_errors_per_second@",
    "commwatch_rdma_rnr_retries": "60 * rate(%s[$__rate_interval]) / @rdma_rnr_retries_per_minute@",
    "commwatch_rdma_slow_restarts": "rate(%s[$__rate_interval]) / @rdma_slow_restarts_per_second@",
}
_REFUSED = {
    "commwatch_rdma_port_transmit_constraint_errors": "round(increase(%s[1h]))",
    "commwatch_rdma_port_receive_constraint_errors": "round(increase(%s[1h]))",
}
_MARKS = {
    "commwatch_rdma_cnp_handled": "rate(%s[$__rate_interval])",
    "commwatch_rdma_ecn_marked": "rate(%s[$__rate_interval])",
}


def _each(calls: Mapping[str, str]) -> str:
    """Each counter by its own name, of the worst port; those that an adapter lacks do not matter."""
    parts = (
        f'label_replace({call % f"{counter}_total{{@node@}}"}, "counter",'
        f' "{counter.removeprefix("commwatch_rdma_")}", "", "")'
        for counter, call in calls.items()
    )
    return f"max by (counter) ({' or '.join(parts)})"


NETWORK = PanelRow("RDMA and Ethernet", (
    Table(title="RDMA ports", description="Each port: state, speed, use, and what went wrong within an hour.",
          labels=("device", "port", "link_layer", "netdev"),
          columns=(
              Column("state", f"max by ({_PORT}) (commwatch_rdma_port_state{{@node@}})", names=PORT_STATE,
                     due="with RDMA"),
              Column("expected", f"max by ({_PORT}) (commwatch_rdma_port_expected{{@node@}})", names=EXPECTED,
                     due="with RDMA"),
              Column("speed", f"max by ({_PORT}) (commwatch_rdma_port_speed_bytes_per_second{{@node@}})", unit="Bps",
                     due="with RDMA"),
              Column("speed expected",
                     f"max by ({_PORT}) (commwatch_rdma_port_speed_expected_bytes_per_second{{@node@}})", unit="Bps",
                     due="with RDMA"),
              Column("sends", f"max by ({_PORT}) (commwatch_rdma_port_transmit_utilization_ratio{{@node@}})",
                     unit="percentunit",
                     scale=high_is_bad("port_at_limit_ratio", "info", "CommwatchPortAtLimit"), due="with RDMA"),
              Column("receives", f"max by ({_PORT}) (commwatch_rdma_port_receive_utilization_ratio{{@node@}})",
                     unit="percentunit",
                     scale=high_is_bad("port_at_limit_ratio", "info", "CommwatchPortAtLimit"), due="with RDMA"),
              Column("symbol errors",
                     f"max by ({_PORT}) (round(increase(commwatch_rdma_port_symbol_errors_total{{@node@}}[1h])))",
                     scale=more_is_bad("rdma_symbol_errors_per_hour", "warning", "CommwatchRdmaErrors"),
                     due="with RDMA"),
              Column("times down", f"max by ({_PORT}) (round(increase(commwatch_rdma_port_flaps_total{{@node@}}[1h])))",
                     scale=any_is_bad("warning", "CommwatchRdmaPortFlapping"), due="with RDMA"),
              Column("", f"max by ({_PORT}, link_layer, netdev) (commwatch_rdma_port_info{{@node@}})", due="with RDMA"),
          ),
          alerts=("CommwatchRdmaPortDown", "CommwatchRdmaPortMissing", "CommwatchRdmaPortSlow"), no_data=NEEDS_RDMA),
    Series(title="RDMA, sent", description="Share of the expected speed of each RDMA port that was sent with.",
           queries=(Query("commwatch_rdma_port_transmit_utilization_ratio{@node@}", "{{device}}/{{port}}",
                          due="with RDMA"),),
           unit="percentunit", maximum=1, no_data=NEEDS_RDMA,
           scale=high_is_bad("port_at_limit_ratio", "info", "CommwatchPortAtLimit")),
    Series(title="RDMA, received", description="Share of the expected speed of each RDMA port that was received with.",
           queries=(Query("commwatch_rdma_port_receive_utilization_ratio{@node@}", "{{device}}/{{port}}",
                          due="with RDMA"),),
           unit="percentunit", maximum=1, no_data=NEEDS_RDMA,
           scale=high_is_bad("port_at_limit_ratio", "info", "CommwatchPortAtLimit")),
    Series(title="RDMA, errors of the link",
           description="Errors within an hour over what makes a ticket, by counter, the worst port.",
           queries=(Query(_each(_RDMA_ERRORS), "{{counter}}", due="with RDMA"),), unit="percentunit",
           scale=any_is_bad("warning", "CommwatchRdmaErrors"),
           alerts=("CommwatchRdmaCounterSaturated",), no_data=NEEDS_RDMA),
    Series(title="RDMA, sent again",
           description="Signs of lost packets over the rate that makes a ticket, by counter, the worst port.",
           queries=(Query(_each(_RETRANSMISSIONS), "{{counter}}", due="with RDMA"),), unit="percentunit",
           scale=any_is_bad("warning", "CommwatchRdmaRetransmitting"),
           alerts=("CommwatchRdmaDropping",), no_data=NEEDS_RDMA),
    Series(title="RDMA, congestion",
           description="Marks and notifications of congestion on RoCE per second, the worst port.",
           queries=(Query(_each(_MARKS), "{{counter}}", due="with RDMA"),),
           unit="cps", scale=high_is_bad("rdma_congestion_notifications_per_second", "info", "CommwatchRdmaCongested"),
           no_data="Needs RDMA ports of RoCE."),
    Series(title="RDMA, waits for credit",
           description="Ticks in which a port had data and no credit to send it, for each packet.",
           queries=(Query("rate(commwatch_rdma_port_transmit_wait_ticks_total{@node@}[$__rate_interval])"
                          " / (rate(commwatch_rdma_port_transmit_packets_total{@node@}[$__rate_interval]) > 0)",
                          "{{device}}/{{port}}", due="with a fault"),),
           alerts=("CommwatchRdmaCongested",), no_data="Needs RDMA ports that send."),
    Table(title="Network interfaces",
          description="Each interface: link, speed, use by the host, errors and drops within an hour.",
          labels=("device", "driver", "master"),
          columns=(
              Column("link", "max by (device) (commwatch_ethernet_carrier{@node@})", names=CARRIER),
              Column("expected", "max by (device) (commwatch_ethernet_expected{@node@})", names=EXPECTED),
              Column("speed", "max by (device) (commwatch_ethernet_speed_bytes_per_second{@node@})", unit="Bps"),
              Column("sends", "max by (device) (commwatch_ethernet_transmit_utilization_ratio{@node@})",
                     unit="percentunit",
                     scale=high_is_bad("port_at_limit_ratio", "info", "CommwatchPortAtLimit")),
              Column("receives", "max by (device) (commwatch_ethernet_receive_utilization_ratio{@node@})",
                     unit="percentunit",
                     scale=high_is_bad("port_at_limit_ratio", "info", "CommwatchPortAtLimit")),
              Column("errors",
                     "max by (device) (round(increase(commwatch_ethernet_receive_errors_total{@node@}[1h])))"),
              Column("errors allowed", "max by (device) (interface:commwatch_ethernet_errors_allowed:count1h{@node@})"),
              Column("drops", "max by (device) (round(increase(commwatch_ethernet_receive_drops_total{@node@}[1h])))"),
              Column("", "max by (device, driver, master) (commwatch_ethernet_info{@node@})"),
          ),
          alerts=("CommwatchEthernetDown", "CommwatchEthernetErrors", "CommwatchEthernetFlapping",
                  "CommwatchEthernetSlow"), no_data=NEEDS_ETHERNET),
    Series(title="Ethernet, paused",
           description="Share of the time in which pauses stopped an interface, or it stopped its peer; the worst"
                       " priority.",
           queries=(
               Query("max by (device)"
                     " (rate(commwatch_ethernet_pfc_receive_pause_seconds_total{@node@}[$__rate_interval])"
                     " or rate(commwatch_ethernet_global_receive_pause_seconds_total{@node@}[$__rate_interval]))",
                     "{{device}} is stopped"),
               Query("max by (device)"
                     " (rate(commwatch_ethernet_pfc_transmit_pause_seconds_total{@node@}[$__rate_interval])"
                     " or rate(commwatch_ethernet_global_transmit_pause_seconds_total{@node@}[$__rate_interval]))",
                     "{{device}} stops its peer"),
           ),
           unit="percentunit", scale=high_is_bad("ethernet_pause_share_ratio", "info", "CommwatchEthernetPaused"),
           alerts=("CommwatchEthernetPauseStorm",), no_data=NEEDS_ETHERNET),
    Series(title="Ethernet, drops",
           description="Packets that an interface or its port dropped for want of buffers, per second.",
           queries=(
               Query("max by (device) (rate(commwatch_ethernet_phy_discards_total{@node@}[$__rate_interval]))",
                     "{{device}} on arrival"),
               Query("max by (device) (rate(commwatch_ethernet_phy_transmit_discards_total{@node@}[$__rate_interval]))",
                     "{{device}} before sending"),
               Query("max by (device) (rate(commwatch_ethernet_out_of_buffer_total{@node@}[$__rate_interval]))",
                     "{{device}} out of buffers"),
           ),
           unit="cps", scale=high_is_bad("ethernet_drops_per_second", "info", "CommwatchEthernetDropping"),
           no_data=NEEDS_ETHERNET),
    Series(title="Ethernet, cable modules", description="Faults of the cable's module within an hour, by kind.",
           queries=(Query("max by (device, kind) (round(increase(commwatch_ethernet_module_events_total{@node@,"
                          ' kind=~"bus_stuck|high_temperature|shorted"}[1h])))',
                          "{{device}} {{kind}}"),),
           scale=any_is_bad("warning", "CommwatchEthernetModuleFault"), no_data=NEEDS_ETHERNET),
    Series(title="RDMA, refused",
           description="Packets within an hour that a rule for partitions or rates refused, the worst port.",
           queries=(Query(_each(_REFUSED), "{{counter}}", due="with RDMA"),),
           scale=more_is_bad("rdma_packet_errors_per_hour", "warning", "CommwatchRdmaPacketsRefused"),
           no_data=NEEDS_RDMA),
    Series(title="Ethernet, bytes of the port", description="What the physical ports sent, RDMA among it.",
           queries=(Query("max by (device)"
                          " (rate(commwatch_ethernet_phy_transmit_bytes_total{@node@}[$__rate_interval]))",
                          "{{device}}"),),
           unit="Bps", no_data=NEEDS_ETHERNET),
), collapsed=True)  # fmt: skip
