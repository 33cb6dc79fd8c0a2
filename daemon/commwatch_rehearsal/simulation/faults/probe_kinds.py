"""Faults that only probes meet: slow paths, failures, hangs and crashes of ranks."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch_rehearsal.simulation.faults.checks import rank_of_node
from commwatch_rehearsal.simulation.faults.fault import Kind
from commwatch_rehearsal.simulation.faults.values import (
    DURATION,
    FACTOR,
    RATE,
    SHARE,
    TEXT,
    one_of,
    optional,
    whole_number,
)

RANK_PHASES = ("start", "rendezvous", "setup", "measure")
"""Where a rank can hang or crash."""

_SLOW = {"bandwidth": optional(FACTOR, 0.5), "latency": optional(FACTOR, 1.0)}
_SLOW_TRAFFIC = {**_SLOW, "traffic": optional(one_of("all", "peer"), "all")}
_RANK = {"phase": optional(one_of(*RANK_PHASES), "measure"), "rank": optional(whole_number(0, 63), 0.0)}
_LAST_SECONDS = 60.0
_BUSY_SECONDS = 5.0

PROBES: Mapping[str, Kind] = {
    "slow_probe": Kind(
        "gpus",
        "small calls take `latency` (1) times as long, large ones get `bandwidth` (1) times the rate",
        "latency: 4, bandwidth: 0.5",
        {"latency": optional(FACTOR, 1.0), "bandwidth": optional(FACTOR, 1.0)},
    ),
    "slow_pair": Kind(
        "pair",
        "between `gpu` and `peer`: `bandwidth` (0.5) times the rate, `latency` (1) times as long for small messages; "
        "`direction` (both): both, to_peer, from_peer",
        "gpu: 0, peer: 1, bandwidth: 0.3, direction: to_peer",
        {**_SLOW, "direction": optional(one_of("both", "to_peer", "from_peer"), "both")},
    ),
    "slow_gpu": Kind(
        "gpu",
        "from and to this GPU: `bandwidth` (0.5) and `latency` (1) as above; `traffic` (all): all, also with the host, "
        "or peer, between GPUs only",
        "gpu: 5, bandwidth: 0.7, latency: 2",
        _SLOW_TRAFFIC,
    ),
    "slow_switch": Kind(
        "switch",
        "through a PCIe switch (`device`: address of its upstream port) or NVSwitch (`device`, or `nvswitch`: number "
        "from 0): `bandwidth` (0.5) and `latency` (1) as above; `traffic` (all): all, or peer, only between GPUs below "
        "the PCIe switch",
        "device: 0000:21:00.0, bandwidth: 0.4, traffic: peer",
        _SLOW_TRAFFIC,
        preset="rtx3090x4",
    ),
    "latency_spikes": Kind(
        "gpus",
        "small calls take `latency` (8) times as long: throughout, or with `rate` for the time `last` (1m) from each "
        "event on",
        "latency: 5, rate: 4/h, last: 90s",
        {"latency": optional(FACTOR, 8.0), "rate": optional(RATE, 0.0), "last": optional(DURATION, _LAST_SECONDS)},
    ),
    "sustained_slowdown": Kind(
        "gpus",
        "once a cycle has run for `after` (5s), every call gets `bandwidth` (0.6) times its rate, as when clocks fall "
        "for heat; a short probe never sees it",
        "gpu: 2, bandwidth: 0.6, after: 10s",
        {"bandwidth": optional(FACTOR, 0.6), "after": optional(DURATION, _BUSY_SECONDS)},
    ),
    "failing_probe": Kind(
        "gpus",
        "probes fail with `reason`",
        "reason: unhandled system error",
        {"reason": optional(TEXT, "injected failure")},
    ),
    "probe_errors": Kind(
        "gpus",
        "a `share` of the cycles fails with `reason`, by the second in which they are set up",
        "share: 0.3, reason: unhandled system error",
        {"share": SHARE, "reason": optional(TEXT, "injected failure")},
    ),
    "probe_hang": Kind(
        "node",
        f"a `rank` (0) stops in a `phase` (measure): {', '.join(RANK_PHASES)}. `how` (waiting): waiting, it hears its "
        "parent; blocked, it holds the interpreter, and only a signal or the end of the daemon ends it",
        "phase: rendezvous, rank: 1, how: blocked",
        {**_RANK, "how": optional(one_of("waiting", "blocked"), "waiting")},
        problems=rank_of_node,
    ),
    "rank_crash": Kind(
        "node",
        f"a `rank` (0) ends by SIGSEGV in a `phase` (measure): {', '.join(RANK_PHASES)}",
        "rank: 3",
        _RANK,
        problems=rank_of_node,
    ),
}
