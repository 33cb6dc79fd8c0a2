"""Faults that only probes meet: slow paths, failures, hangs and crashes of ranks."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch.simulation.faults.checks import rank_of_node
from commwatch.simulation.faults.fault import Kind
from commwatch.simulation.faults.values import (
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
        "small calls take `latency` times as long, large ones get `bandwidth` times the rate; both 1 where absent",
        "latency: 4, bandwidth: 0.5",
        {"latency": optional(FACTOR, 1.0), "bandwidth": optional(FACTOR, 1.0)},
    ),
    "slow_pair": Kind(
        "pair",
        "the way between `gpu` and `peer` gives `bandwidth` times its rate (0.5 where absent), and small messages take "
        "`latency` times as long (1 where absent); `direction` is both, to_peer or from_peer; `both` where absent",
        "gpu: 0, peer: 1, bandwidth: 0.3, direction: to_peer",
        {**_SLOW, "direction": optional(one_of("both", "to_peer", "from_peer"), "both")},
    ),
    "slow_gpu": Kind(
        "gpu",
        "every way from and to this GPU, that to the host among them, gives `bandwidth` times its rate (0.5 where "
        "absent), and small messages take `latency` times as long (1 where absent). `traffic` is all or peer: only to "
        "and from other GPUs; `all` where absent",
        "gpu: 5, bandwidth: 0.7, latency: 2",
        _SLOW_TRAFFIC,
    ),
    "slow_switch": Kind(
        "switch",
        "every way through a PCIe switch (`device`: the address of its upstream port) or NVSwitch (`device`, or "
        "`nvswitch`: its number from 0) gives `bandwidth` times its rate (0.5 where absent), and small messages take "
        "`latency` times as long (1 where absent). `traffic` is all or peer: only between two GPUs below the PCIe "
        "switch; `all` where absent",
        "device: 0000:21:00.0, bandwidth: 0.4, traffic: peer",
        _SLOW_TRAFFIC,
        preset="rtx3090x4",
    ),
    "latency_spikes": Kind(
        "gpus",
        "small calls take `latency` times as long (8 where absent): throughout, so that `for` says how many results in "
        "a row, or with `rate` for the time `last` (1m where absent) from each event on",
        "latency: 5, rate: 4/h, last: 90s",
        {
            "latency": optional(FACTOR, 8.0),
            "rate": optional(RATE, 0.0),
            "last": optional(DURATION, _LAST_SECONDS),
        },
    ),
    "sustained_slowdown": Kind(
        "gpus",
        "once the ranks of a cycle have been at work for `after` (5s where absent), every call gets `bandwidth` times "
        "its rate (0.6 where absent): clocks that fall for heat or power, which a short probe never sees",
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
        "a `share` of the cycles fails with `reason`; the second in which a cycle is set up decides its lot",
        "share: 0.3, reason: unhandled system error",
        {"share": SHARE, "reason": optional(TEXT, "injected failure")},
    ),
    "probe_hang": Kind(
        "node",
        f"a `rank` (0 where absent) does not go on in a `phase`: {', '.join(RANK_PHASES)}; `measure` where absent. "
        "`how`: `waiting`, it still hears its parent; `blocked`, it sits in a foreign call that holds the interpreter, "
        "and only a signal ends it (or the end of the daemon); `waiting` where absent",
        "phase: rendezvous, rank: 1, how: blocked",
        {**_RANK, "how": optional(one_of("waiting", "blocked"), "waiting")},
        problems=rank_of_node,
    ),
    "rank_crash": Kind(
        "node",
        f"a `rank` (0 where absent) ends by SIGSEGV in a `phase`: {', '.join(RANK_PHASES)}; `measure` where absent",
        "rank: 3",
        _RANK,
        problems=rank_of_node,
    ),
}
