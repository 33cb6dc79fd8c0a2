"""Shared parts of the pictures: text that stays text, fonts, the colours of a page in light and dark; pure."""

from __future__ import annotations

from html import escape

from commwatch.lines import printable

FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
PAPER, INK, FADED, BLANK = "#ffffff", "#1b1f24", "#59636e", "#eef1f4"
MARGIN = 16
LINE = 18
LETTER = 0.6
"""Mean width of a letter by its height, in the widest of the fonts."""
BOLD_LETTER = 0.68


def picture(name: str, width: int, height: int, title: str, words: str, body: str) -> str:
    """A whole picture.

    Args:
        name: class of the picture.
        width: in pixels.
        height: in pixels.
        words: what it shows, for those who cannot see it.
    """
    # Light colours are attributes: what knows no style sheets shows them.
    dark = f"""<style>@media screen and (prefers-color-scheme:dark){{
.{name} .paper{{fill:#0f1318}}.{name} .ink{{fill:#e6edf3}}.{name} .faded{{fill:#9aa5b1}}
.{name} .blank{{fill:#222932}}}}</style>"""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" role="img" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="{FONTS}" font-size="12" '
        f'fill="{INK}" style="min-width:{0.7 * width:.0f}px"><title>{escaped(title)}</title>'
        f"<desc>{escaped(words)}</desc>{dark}"
        f'<rect class="paper" width="100%" height="100%" fill="{PAPER}"/>{body}</svg>'
    )


def write(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    bold: bool = False,
    anchor: str = "",
    shade: str = "ink",
    fill: str = "",
    upwards: bool = False,
) -> str:
    """A text at its base line, in a colour of the page, or on a cell in the colour ``fill``."""
    style = f'fill="{fill}"' if fill else f'class="{shade}"' + (f' fill="{FADED}"' if shade == "faded" else "")
    style += f' font-size="{size}"' if size != 12 else ""
    style += ' font-weight="bold"' if bold else ""
    style += f' text-anchor="{anchor}"' if anchor else ""
    place = f'transform="translate({x:.5g} {y:.5g}) rotate(-90)"' if upwards else f'x="{x:.5g}" y="{y:.5g}"'
    return f"<text {place} {style}>{escaped(text)}</text>"


def escaped(text: str) -> str:
    """Without what XML cannot hold or would turn other text around."""
    return escape(printable(text))
