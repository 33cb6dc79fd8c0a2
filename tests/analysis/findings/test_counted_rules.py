"""Counters with a limit in the catalogue: each just above it, at it, before its window, and by its number alone."""

from __future__ import annotations

from commwatch.findings.codes import CODES
from commwatch_exporters.catalogue import CATALOGUE, LIMITS
from support.facts import HOUR, Numbers, before, codes_of, facts_of, seen_by
from support.passes import in_one_pass

BURST = 120.0
"""Seconds over which rates are taken that a network may reach for a moment."""

ALLOWED: dict[str, dict[str, tuple[float, ...]]] = {
    "nvlink_recovery_failed": {"nvlink_recoveries_failed": (HOUR, 0)},
    "nvlink_replays": {"nvlink_replay_errors": (HOUR, 0)},
    "nvlink_packet_errors": {
        "nvlink_ecc_data_errors": (HOUR, 0), "nvlink_malformed_packets": (HOUR, 0),
        "nvlink_buffer_overrun_errors": (HOUR, 0), "nvlink_receive_errors": (HOUR, 0),
        "nvlink_receive_general_errors": (HOUR, 0), "nvlink_local_link_integrity_errors": (HOUR, 0),
        "nvlink_transmit_discards": (HOUR, 0),
    },
    "nvlink_remote_errors": {"nvlink_receive_remote_errors": (HOUR, 0)},
    "rdma_errors": {
        "rdma_port_symbol_errors": (HOUR, 120), "rdma_port_link_error_recovery": (60.0, 5, HOUR, 10),
        "rdma_port_local_link_integrity_errors": (HOUR, 0), "rdma_port_excessive_buffer_overrun_errors": (HOUR, 0),
        "rdma_port_receive_errors": (HOUR, 10), "rdma_icrc_errors": (HOUR, 10),
    },
    "rdma_errors_upstream": {"rdma_port_receive_remote_physical_errors": (HOUR, 10)},
    "rdma_packets_refused": {
        "rdma_port_receive_constraint_errors": (HOUR, 10), "rdma_port_transmit_constraint_errors": (HOUR, 10),
    },
    "rdma_retransmitting": {
        "rdma_ack_timeouts": (BURST, 20), "rdma_retransmission_timeouts": (BURST, 20),
        "rdma_unresponsive_remote": (BURST, 20), "rdma_impaired_connections": (BURST, 20),
        "rdma_packet_sequence_errors": (BURST, 1200), "rdma_implied_nak_sequence_errors": (BURST, 1200),
        "rdma_adaptive_retransmissions": (BURST, 1200), "rdma_rnr_retries": (BURST, 2),
        "rdma_slow_restarts": (BURST, 1200),
    },
    "rdma_connections_lost": {"rdma_retries_exceeded": (HOUR, 0), "rdma_unresponsive_remote": (HOUR, 0)},
    "rdma_dropping": {"rdma_port_transmit_discards": (BURST, 120), "rdma_receive_drops": (BURST, 120)},
    "rdma_congested": {"rdma_cnp_handled": (BURST, 12_000), "rdma_ecn_marked": (BURST, 12_000)},
    "ethernet_dropping": {
        "ethernet_phy_discards": (BURST, 12_000), "ethernet_phy_transmit_discards": (BURST, 12_000),
        "ethernet_out_of_buffer": (BURST, 12_000), "ethernet_receive_missed": (BURST, 12_000),
    },
    "ethernet_pause_storm": {"ethernet_pause_storms": (HOUR, 0)},
    "ethernet_over_allowance": {"ethernet_allowance_exceeded": (BURST, 12_000)},
}  # fmt: skip
"""By code and counter: seconds of a window, and the highest rise in it that is no finding; then those of another
window."""
CASES = [
    (code, f"commwatch_{counter}_total", *of[place : place + 2])
    for code, counters in ALLOWED.items() for counter, of in counters.items() for place in range(0, len(of), 2)
]  # fmt: skip
LABELS = {
    "nvlink": {"gpu": "0", "pci_bus_id": "0000:17:00.0", "link": "3"},
    "rdma": {"device": "mlx5_0", "port": "1", "kind": "transport"},
    "ethernet": {"device": "ens1np0", "kind": "bus_stuck"},
}
IDENTITIES = {
    "nvlink": "nvlink/0000:17:00.0/3", "rdma": "rdma_port/mlx5_0/1", "ethernet": "interface/ens1np0",
}  # fmt: skip


def test_every_limit_of_the_catalogue_is_in_the_table() -> None:
    assert {(code, metric, window) for code, metric, window, _ in CASES} == {
        (code, metric.name, limit.window_seconds) for code, limits in LIMITS.items() for metric, limit in limits
    }


@in_one_pass("code, metric, window, allowed", CASES)
def test_a_counter_is_told_above_its_limit_within_its_window(
    code: str, metric: str, window: float, allowed: float
) -> None:
    """The limit itself, an older rise, the number as such and what was not read are not."""
    kind = code.partition("_")[0]
    labels = tuple(LABELS[kind][name] for name in CATALOGUE[metric].labels)
    now: Numbers = {metric: {labels: 1e6}}

    def after(rise: float, ago: float) -> list[tuple[str, str]]:
        history = {ago + 5.0: before(now, {metric: {labels: rise}}), ago: now}
        return codes_of(seen_by(code, facts_of(now, history)))

    assert after(allowed + 1, window - 1.0) == [(code, IDENTITIES[kind])]
    assert after(allowed, window - 1.0) == []
    assert after(allowed + 1, window) == []
    assert seen_by(code, facts_of(now)) == []
    assert seen_by(code, facts_of({})) == []


@in_one_pass("code", sorted({code for code, _, window, _ in CASES if window == BURST} - {"rdma_congested"}))
def test_one_burst_opens_nothing(code: str) -> None:
    """It is out of the window before it has lasted long enough: a job that dies makes one on every other node."""
    assert CODES[code].opens_after > BURST
