"""The colours of heat maps: readable for the colour-blind and in grey."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

Colour: TypeAlias = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

_CIVIDIS = (
    (0x00, 0x22, 0x4E), (0x00, 0x31, 0x70), (0x2A, 0x3F, 0x6D), (0x43, 0x4E, 0x6C), (0x57, 0x5D, 0x6D),
    (0x6A, 0x6C, 0x71), (0x7D, 0x7C, 0x78), (0x91, 0x8B, 0x78), (0xA5, 0x9C, 0x74), (0xBC, 0xAE, 0x6C),
    (0xD2, 0xC0, 0x60), (0xE9, 0xD3, 0x4E), (0xFE, 0xE8, 0x38),
)  # fmt: skip
"""The colour map cividis at thirteen places: its lightness rises evenly, also for those who do not see all colours
(Nunez, Anderton and Renslow, 2018)."""


def colour(brightness: float) -> Colour:
    """Red, green and blue, 0 to 255, for a place on the colour scale: 0 dark blue, 1 yellow."""
    place = min(1.0, max(0.0, brightness)) * (len(_CIVIDIS) - 1)
    below, above = list(pairwise(_CIVIDIS))[min(int(place), len(_CIVIDIS) - 2)]
    share = place - min(int(place), len(_CIVIDIS) - 2)
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(below, above, strict=True))
    return red, green, blue


def ink(ground: Colour) -> Colour:
    """Black or white, whichever reads better on a ground."""
    lightness = luminance(ground)
    return (0, 0, 0) if (lightness + 0.05) / 0.05 >= 1.05 / (lightness + 0.05) else (255, 255, 255)


def css(shade: Colour) -> str:
    """A colour as style sheets and SVG write it: ``#rrggbb``."""
    return "#{:02x}{:02x}{:02x}".format(*shade)


def luminance(shade: Colour) -> float:
    """Relative luminance, 0 to 1 (WCAG 2.1)."""
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in (c / 255 for c in shade)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
