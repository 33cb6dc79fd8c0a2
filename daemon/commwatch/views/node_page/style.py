"""Style of the node's page: light and dark, from the phone to the wide screen; every text has a contrast of 4.5."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LIGHT: Final = """color-scheme:light;--bg:#fff;--fg:#1b1f24;--dim:#59636e;--line:#d8dee4;--card:#f6f8fa;
--good:#1a7f37;--bad:#c21c2b;--note:#fff4ce;--notefg:#5c4400;--link:#0757ba"""
DARK: Final = """color-scheme:dark;--bg:#0f1318;--fg:#e6edf3;--dim:#9aa5b1;--line:#2f3742;--card:#171c23;
--good:#4cc46b;--bad:#ff7b72;--note:#3a2f0b;--notefg:#f2dc9b;--link:#6cb2ff"""
"""Colours of all pages, as CSS properties of ``:root``."""

_MORE_LIGHT = """--warn:#8a5a00;--badbg:#fff0ee;--warnbg:#fff8e5;--goodbg:#edf8f0;--wire:#7d8fa3;
--use:#0757ba;--use1:#7e9cc4;--use2:#5886c0;--use3:#2f6fbd"""
_MORE_DARK = """--warn:#e3b341;--badbg:#2a1416;--warnbg:#282009;--goodbg:#0f2216;--wire:#64748b;
--use:#7cbcff;--use1:#4b6c92;--use2:#5481b3;--use3:#6098d6"""

STYLE: Final = (
    f":root{{{LIGHT};{_MORE_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK};{_MORE_DARK}}}}}"
    "\n" + Path(__file__).with_name("page.css").read_text("utf-8")
)
