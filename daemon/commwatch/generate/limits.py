"""PromQL of the limits that counters have in the catalogue, for alert rules and dashboards."""

from __future__ import annotations

import re
from collections.abc import Sequence

from commwatch_exporters.catalogue import LIMITS
from commwatch_exporters.catalogue.metric import Limit, Metric

_SUBJECT = re.compile(r"^commwatch_(nvlink|rdma_port|rdma|ethernet)_|_total$")
_JOB = 'job="@job@"'
_OR = f"\n{' ' * 12}or\n{' ' * 12}"
"""As deep as the templates have the terms of an alert."""
_WITHIN = {60.0: "in a minute", 3600.0: "in an hour"}


def rise(series: str, limit: Limit, rate_window: str = "2m") -> str:
    """The value that a limit is compared with."""
    if limit.window_seconds == 3600:
        return f"round(increase({series}[1h]))"
    if limit.window_seconds == 60:
        # Minutes that begin every 15 s: of minutes side by side none would see what rose between the last sample of
        # one and the first of the next. Two of them: the rules are evaluated so often.
        return f"max_over_time(round(increase({series}[1m]))[2m:15s])"
    factor = "" if limit.per_seconds == 1 else f"{limit.per_seconds:g} * "
    return f"{factor}rate({series}[{rate_window}])"


def passed(finding: str) -> str:
    """The counters that pass their limits for a finding, each with its name as the label ``counter``; a template."""
    return _OR.join(
        _named(
            metric,
            f"{rise(_series(metric, _JOB), limit)} {'>=' if limit.inclusive else '>'}"
            f" {f'@{limit.threshold}@' if limit.threshold else 0}",
        )
        for metric, limit in LIMITS[finding]
    )


def limit_words(finding: str) -> str:
    """The limit of the counter in the label ``counter``, for the text of an alert: a template of Go with thresholds."""
    counters: dict[str, list[Limit]] = {}
    for metric, limit in LIMITS[finding]:
        counters.setdefault(_SUBJECT.sub("", metric.name), []).append(limit)
    words: dict[str, list[str]] = {}
    for name, limits in counters.items():
        numbers = [f"@{one.threshold}@" if one.threshold else "0" for one in limits]
        if len(limits) > 1:
            numbers = [f"{number} {_WITHIN[one.window_seconds]}" for number, one in zip(numbers, limits, strict=True)]
        words.setdefault(" or ".join(numbers), []).append(name)
    *some, last = words
    cases = (f"{{{{ if {_any_of(words[one])} }}}}{one}{{{{ else }}}}" for one in some)
    return "".join(cases) + last + "{{ end }}" * len(some)


def _any_of(counters: Sequence[str]) -> str:
    tests = [f'eq $labels.counter "{name}"' for name in counters]
    return tests[0] if len(tests) == 1 else f"or {' '.join(f'({test})' for test in tests)}"


def each_of(finding: str, selector: str, *, of_limit: bool = False) -> str:
    """How each counter of a finding rises, by its own name, where it is worst; a limit for a minute is left out.

    Args:
        selector: labels, as in braces.
        of_limit: as a share of its limit; of those of which any rise is too much, the rise.
    """
    parts = (
        _named(
            metric,
            rise(_series(metric, selector), limit, "$__rate_interval")
            + (f" / @{limit.threshold}@" if of_limit and limit.threshold else ""),
        )
        for metric, limit in LIMITS[finding]
        if limit.window_seconds != 60
    )
    return f"max by (counter) ({' or '.join(parts)})"


def _series(metric: Metric, selector: str) -> str:
    return f"{metric.name}{{{selector}}}"


def _named(metric: Metric, term: str) -> str:
    """A term with the counter's name, without subject and ``_total``, as the label ``counter``."""
    return f'label_replace({term}, "counter", "{_SUBJECT.sub("", metric.name)}", "", "")'
