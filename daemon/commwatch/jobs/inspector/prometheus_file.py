"""The .prom file of one GPU, which Inspector rewrites in place: a reader may see a part of it.

Source: ``plugins/profiler/inspector/inspector_prom.cc``. It has means without counts, so neither operations nor a share
of time follow from it; the totals of ``NCCL_INSPECTOR_PROM_DUMP_STATS`` say what was lost.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from commwatch.jobs.inspector.aggregate import Key, key_of

MOST_BYTES: Final = 256 << 10
"""Of a file; one of 8 communicators has 24 kB by NCCL's own estimate."""
MAJOR: Final = 5
"""Of the label ``version``: that of the profiler's interface, by which the labels changed."""
_LINE: Final = re.compile(r"(nccl_\w{1,64})\{([^\n]{0,2048})\} (\S{1,32})")
_LABEL: Final = re.compile(r'(\w{1,64})="((?:[^"\\]|\\.){0,512})"')
_NAME: Final = re.compile(r"nccl_inspector_metrics_(?:GPU-)?([0-9a-fA-F-]{32,36})\.prom")
_RANGE: Final = re.compile(r"(\d{1,4})(?:-\d{1,4})?(B|KB|MB|GB|TB)")
_UNITS: Final = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_BANDWIDTH: Final = {"nccl_bus_bandwidth_gbs": "collective", "nccl_p2p_bus_bandwidth_gbs": "p2p_operation"}
"""Metric, and the label that names its operation."""
_DROPPED: Final = {"nccl_collectives_dropped_total": "collective", "nccl_p2p_dropped_total": "p2p"}
_TOTALS: Final = frozenset({"nccl_collectives_total", "nccl_p2p_total"})
_OTHERS: Final = frozenset({"nccl_collective_exec_time_microseconds", "nccl_p2p_exec_time_microseconds"})


class Page(NamedTuple):
    means: dict[Key, float]
    """Mean bus bandwidth of a key, bytes per second; of several communicators the lowest."""
    dropped: dict[str, float]
    """Records lost since the process began, by kind; empty where the file has no totals."""
    operations: float | None
    """Operations since the process began; None without totals."""
    refused: int
    """Lines that are not of this form, or hold a number out of range."""
    foreign: str
    """A version that is not read; empty where all are."""


def gpu_of(name: str) -> str:
    """The UUID of the GPU in the name of a file, with ``GPU-`` before it; empty where it has none."""
    found = _NAME.fullmatch(name)
    return "" if found is None else f"GPU-{found[1].lower()}"


def parse_page(content: bytes) -> Page:
    """Parse a file; its last line counts only if it is whole."""
    means: dict[Key, float] = {}
    dropped: dict[str, float] = {}
    operations: float | None = None
    refused, foreign = 0, ""
    for line in content.decode(errors="replace").split("\n")[:-1]:
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        value = None if found is None else _number(found[3])
        if found is None or value is None:
            refused += 1
            continue
        name, labels = found[1], dict(_LABEL.findall(found[2]))
        version = labels.get("version", "")
        if version.partition(".")[0] != f"v{MAJOR}":
            foreign = version or "none"
        elif name in _DROPPED:
            dropped[_DROPPED[name]] = value
        elif name in _TOTALS:
            operations = (operations or 0) + value
        elif name in _BANDWIDTH:
            key = _key(labels, _BANDWIDTH[name])
            if key is None:
                refused += 1
            elif value > 0:
                means[key] = min(value * 1e9, means.get(key, math.inf))
        else:
            refused += name not in _OTHERS
    return Page(means, dropped, operations, refused, foreign)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e18 else None


def _key(labels: dict[str, str], operation: str) -> Key | None:
    size = _RANGE.fullmatch(labels.get("message_size", ""))
    nodes = labels.get("n_nodes", "")
    if size is None or not nodes.isdecimal() or len(nodes) > 6 or operation not in labels:
        return None
    return key_of(labels[operation], int(size[1]) * _UNITS[size[2]], int(nodes))
