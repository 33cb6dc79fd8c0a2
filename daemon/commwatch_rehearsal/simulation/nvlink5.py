"""Fields of NVLink 5: packets with errors, recoveries, and the bit errors of the physical layer."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import partial

from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.faults.nvidia_kinds import PACKET_COUNTERS
from commwatch_rehearsal.simulation.field_answers import (
    NO_SUCH_LINK,
    NVLINK_5_TRAFFIC,
    REFUSED,
    Asked,
    Field,
    FieldAnswer,
    counter,
    flowing,
    number,
)

FEC_BINS = 16
RECENT_DRIVER = 595
"""The first driver branch with fields 289 to 295."""

_HEALTHY_RAW_RATIO = 1e-8
_LANES = 2
_CODEWORD_BITS = 5440
"""544 symbols of 10 bits; that the histogram counts these is inferred."""
_BLOCK_BYTES = 256
_ZERO_RATIO = 15 << 8 | 255
"""How the driver packs a ratio of 0."""
_SYMBOL_RATIO_SHARE = 4
"""Symbol over effective error ratio of a link with bit errors."""
_EFFECTIVE_SHARE = 10
"""Symbol errors for each error that is left after correction."""


def pack_ratio(ratio: float) -> int:
    """A bit error ratio as the driver packs it: mantissa m in bits 8 to 11, exponent e in bits 0 to 7, m × 10⁻ᵉ."""
    if ratio <= 0:
        return _ZERO_RATIO
    exponent = -math.floor(math.log10(ratio))
    mantissa = round(ratio * 10.0**exponent)
    if mantissa == 10:
        mantissa, exponent = 1, exponent - 1
    return mantissa << 8 | exponent


def _bit_errors(asked: Asked, link: int, time: float) -> list[Fault]:
    return [
        fault for fault in asked.hardware.timeline.counting("nvlink_bit_errors", asked.gpu, link) if fault.active(time)
    ]


def _raw_ratio(asked: Asked, link: int, time: float, lane: int | None = None) -> float:
    """Errors per bit before correction; healthy lanes differ by up to a factor of two."""
    spread = 1 + zlib.crc32(f"{asked.gpu}.{link}.{lane}".encode()) / 2**32
    return max([_HEALTHY_RAW_RATIO * spread, *(fault.settings["raw"] for fault in _bit_errors(asked, link, time))])


def _bits_per_second(asked: Asked, link: int, time: float) -> float:
    nvlink = asked.hardware.preset.model.nvlink
    if nvlink is None or not asked.hardware.gpus.link_up(asked.gpu, link, time):
        return 0.0
    return nvlink.line_rate_megabytes_per_second * 8e6


def _running(part: str, rate: Callable[[Asked, int, float], float]) -> Field:
    """A counter of the physical layer that always runs, at a rate per link that depends on the time."""

    def read(asked: Asked) -> FieldAnswer:
        link = asked.scope
        flow = asked.hardware.gpus.flow(
            asked.gpu, f"{asked.gpu}.{link}", part, asked.epoch.start, lambda time: rate(asked, link, time)
        )
        return flowing(flow)

    return read


def _raw_errors(lane: int, asked: Asked, link: int, time: float) -> float:
    return _raw_ratio(asked, link, time, lane) * _bits_per_second(asked, link, time) / _LANES


def _codewords(corrected: int, asked: Asked, link: int, time: float) -> float:
    """Codewords per second by the number of corrected symbols: errors that come independently of each other."""
    expected = _CODEWORD_BITS * _raw_ratio(asked, link, time)
    share = math.exp(-expected) * expected**corrected / math.factorial(corrected)
    return share * _bits_per_second(asked, link, time) / _CODEWORD_BITS


def _blocks(asked: Asked, link: int, time: float) -> float:
    return _bits_per_second(asked, link, time) / 8 / _BLOCK_BYTES


def _effective_errors(asked: Asked) -> FieldAnswer:
    events = asked.events("nvlink_bit_errors", asked.scope).count
    return counter(lambda time: events(time) // _EFFECTIVE_SHARE) if events is not None else number(0)


def _recoveries_failed(asked: Asked) -> FieldAnswer:
    return asked.events("nvlink_recovery_failed", asked.scope)


def _recoveries(asked: Asked) -> FieldAnswer:
    timeline = asked.hardware.timeline
    kinds = ("nvlink_recovery", "nvlink_recovery_failed")
    return asked.counted([fault for kind in kinds for fault in timeline.counting(kind, asked.gpu, asked.scope)])


def _packet_errors(name: str, asked: Asked) -> FieldAnswer:
    timeline = asked.hardware.timeline
    faults = [
        fault
        for fault in timeline.counting("nvlink_packet_errors", asked.gpu, asked.scope)
        if fault.words["counter"] == name
    ]
    return asked.counted(
        [*faults, *(timeline.counting("nvlink_crc", asked.gpu, asked.scope) if name == "receive" else ())]
    )


_COUNTS: dict[int, Field] = {
    **NVLINK_5_TRAFFIC,
    **{field: partial(_packet_errors, name) for name, field in PACKET_COUNTERS.items()},
    213: lambda asked: asked.events("nvlink_recovery", asked.scope),
    214: _recoveries_failed,
    215: _recoveries,
    219: _effective_errors,
    221: lambda asked: asked.events("nvlink_bit_errors", asked.scope),
    **{235 + corrected: _running(f"fec{corrected}", partial(_codewords, corrected)) for corrected in range(FEC_BINS)},
    289: _running("raw0", partial(_raw_errors, 0)),
    290: _running("raw1", partial(_raw_errors, 1)),
    294: _running("plr", _blocks),
    295: lambda asked: asked.events("nvlink_replay", asked.scope),
}
"""Counters of a link."""


def _effective_ratio(asked: Asked, link: int, time: float) -> float:
    return max((fault.settings["effective"] for fault in _bit_errors(asked, link, time)), default=0.0)


_RATIOS: dict[int, Callable[[Asked, int, float], float]] = {
    220: _effective_ratio,
    222: lambda asked, link, time: _SYMBOL_RATIO_SHARE * _effective_ratio(asked, link, time),
    291: partial(_raw_ratio, lane=0),
    292: partial(_raw_ratio, lane=1),
    293: _raw_ratio,
}
"""Ratios of a link as they are now; refused for a link that is not active."""

NVLINK_5_COUNTERS = frozenset(_COUNTS)
NVLINK_5_FIELDS = frozenset({*_COUNTS, *_RATIOS})
"""Fields that earlier generations do not have."""


def nvlink_5_field(links: int, field: int, asked: Asked) -> FieldAnswer:
    """The answer to a field of this generation; all links together have traffic alone."""
    if field >= 289 and int(asked.hardware.preset.driver_version.split(".")[0]) < RECENT_DRIVER:
        return REFUSED
    if field in NVLINK_5_TRAFFIC:
        return NVLINK_5_TRAFFIC[field](asked)
    if asked.scope >= links:
        return NO_SUCH_LINK
    if field in _COUNTS:
        return _COUNTS[field](asked)
    if not asked.condition.links_active[asked.scope]:
        return NO_SUCH_LINK
    return number(pack_ratio(_RATIOS[field](asked, asked.scope, asked.epoch.start)))
