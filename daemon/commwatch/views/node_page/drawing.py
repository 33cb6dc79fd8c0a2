"""The picture as inline SVG: adapters on the left, GPUs in the middle, NVLinks and NVSwitches on the right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from commwatch.views.node_page.fabric import Branch, Device, Fabric, Switch
from commwatch.views.node_page.markup import GLYPHS, section, text

_WIDTH = 340
"""Units; on a phone about one pixel each, so that the smallest text stays readable."""
_ADAPTER_X, _ADAPTER_WIDTH = 1, 84
_BUS_X, _BUS_WIDTH = 97, 9
_GPU_X, _GPU_WIDTH = 118, 88
_SWITCH_WIDTH = 44
_SWITCH_X = _WIDTH - _SWITCH_WIDTH - 1
_TOP = 18
_ROW = 38
_BOX = 32
_GAP = 8
"""Between two branches."""
_NUMA_GAP = 18
_STUB = 20
"""Of a link whose far end is not known."""
_USE_STEPS = (0.01, 0.25, 0.5, 0.75)
"""Shares from which a link is drawn heavier."""
_LONGEST_NAME = 10

_MARKED = frozenset({"bad", "warn", "info"})

Points = Mapping[str, float]
"""By PCI address the middle of a box."""


def use_class(send: float | None, receive: float | None) -> str:
    """How much a link is in use: ``u0`` below 1 %, then in quarters to ``u4``; empty where not known."""
    known = [value for value in (send, receive) if value is not None]
    return f"u{sum(max(known) >= step for step in _USE_STEPS)}" if known else ""


def picture(fabric: Fabric) -> str:
    """The section with the picture, and the same in words for readers who cannot see it."""
    if not fabric.branches:
        return section(
            "picture", "GPUs and links", '<p class="dim">Neither a GPU nor an adapter is read at present.</p>'
        )
    words = text(fabric.words)
    boxes, height, middles = _branches(fabric.branches)
    return section(
        "picture",
        "GPUs and links",
        f'<figure><figcaption>{words}</figcaption><svg viewBox="0 0 {_WIDTH} {height:g}" role="img" '
        f'aria-labelledby="picture-words"><desc id="picture-words">{words}</desc>'
        f"{''.join([*_column_heads(fabric), *_nvlinks(fabric, middles, height), *boxes])}</svg></figure>"
        f"{_legend(fabric)}",
    )


def _legend(fabric: Fabric) -> str:
    rows = [("pcie good", "PCIe"), ("cpu", "through the CPU")]
    if any(gpu.links for gpu in fabric.gpus):
        rows = [("nv u0", "NVLink, idle"), ("nv u3", "in use: the heavier, the more"), ("nv bad", "✕ down"),
                ("nv warn", "! with errors"), ("nv off", "not in use"), *rows]  # fmt: skip
    items = "".join(
        [
            f'<li><svg viewBox="0 0 26 8" aria-hidden="true"><g class="{kind}"><path class="{kind.split()[-1]}" '
            f'd="M0 4H26"/></g></svg>{words}</li>'
            for kind, words in rows
        ]
    )
    return f'<ul class="legend">{items}<li>↑ sends, ↓ receives, in % of what it can</li></ul>'


def _column_heads(fabric: Fabric) -> Iterator[str]:
    heads: list[tuple[float, str, str]] = [(_GPU_X, "start", "GPU")]
    if fabric.adapters:
        heads.append((_ADAPTER_X, "start", "Adapters"))
        heads.append((_BUS_X + _BUS_WIDTH / 2, "middle", "PCIe"))
    if any(gpu.links for gpu in fabric.gpus):
        heads.append((_GPU_X + _GPU_WIDTH + 8, "start", "NVLink"))
    if fabric.switches:
        heads.append((_WIDTH - 1, "end", "NVSwitch"))
    for x, anchor, word in heads:
        yield f'<text class="h" x="{x:g}" y="9" text-anchor="{anchor}">{word}</text>'


# --- branches: adapters, PCIe and GPUs ---


def _branches(branches: Sequence[Branch]) -> tuple[list[str], float, dict[str, float]]:
    """The boxes with their PCIe links, the height of the picture, and the middle of each GPU's box."""
    parts: list[str] = []
    middles: dict[str, float] = {}
    y, numa = float(_TOP), branches[0].numa if branches else ""
    several = len({branch.numa for branch in branches}) > 1
    bus_x = _BUS_X + _BUS_WIDTH / 2
    before: float | None = None
    for place, branch in enumerate(branches):
        new_numa = several and (place == 0 or branch.numa != numa)
        if new_numa:
            y += _NUMA_GAP - (6 if place == 0 else 0)
            parts.append(_numa_line(branch.numa, y - 8))
        numa = branch.numa
        rows = max(len(branch.gpus), len(branch.adapters))
        bottom = y + rows * _ROW - (_ROW - _BOX)
        if before is not None:
            kind = "cpu far" if new_numa else "cpu"
            parts.append(f'<path class="{kind}" d="M{bus_x:g} {before:g}V{y + 2:g}"/>')
        before = bottom - 2
        parts.append(_bus(branch, y, bottom))
        for row, adapter in enumerate(branch.adapters):
            parts.append(_device_box(adapter, _ADAPTER_X, _ADAPTER_WIDTH, _BUS_X, y + row * _ROW))
        for row, gpu in enumerate(branch.gpus):
            middles[gpu.address] = y + row * _ROW + _BOX / 2
            parts.append(_device_box(gpu, _GPU_X, _GPU_WIDTH, _BUS_X + _BUS_WIDTH, y + row * _ROW))
        y = bottom + _GAP
    return parts, y, middles


def _numa_line(numa: str, y: float) -> str:
    name = f"NUMA {text(numa)}" if numa else "NUMA unknown"
    return (
        f'<path class="numa" d="M{_ADAPTER_X} {y:g}H{_GPU_X + _GPU_WIDTH}"/>'
        f'<text class="h numa-name" x="{_BUS_X + _BUS_WIDTH / 2:g}" y="{y + 3:g}" text-anchor="middle">{name}</text>'
    )


def _bus(branch: Branch, top: float, bottom: float) -> str:
    """A PCIe switch as a filled bar; a root port as a dot on the way to the CPU."""
    if not branch.switch:
        return f'<circle class="port" cx="{_BUS_X + _BUS_WIDTH / 2:g}" cy="{top + _BOX / 2:g}" r="3"/>'
    title = f"<title>PCIe switch {text(branch.switch)}</title>"
    return (
        f'<rect class="bus {branch.level}" x="{_BUS_X}" y="{top:g}" width="{_BUS_WIDTH}" '
        f'height="{bottom - top:g}" rx="2">{title}</rect>'
    )


def _device_box(one: Device, x: float, width: float, bus_x: float, y: float) -> str:
    """Its PCIe link to the bus, its name with the sign of its state, and its use with links or speed."""
    edge = x if x > bus_x else x + width
    level, middle = one.level, y + _BOX / 2
    title = f"{one.name} ({one.address}): {one.words}" + (f"; PCIe {one.pcie}" if one.pcie else "")
    name = one.name if len(one.name) <= _LONGEST_NAME else f"{one.name[: _LONGEST_NAME - 1]}…"
    state = GLYPHS.get(level, "?" if level == "unknown" else "–")
    use = "" if one.send is None and one.receive is None else f"↑{_whole(one.send)} ↓{_whole(one.receive)}"
    has = "" if one.speed is None else f"{one.speed * 8 / 1e9:.0f}G"
    if one.links_wanted:
        has = f"{one.links_up}/{one.links_wanted}"
    return (
        f'<path class="pcie {one.pcie_level}" d="M{edge:g} {middle:g}H{bus_x:g}"/>'
        f"{_sign((edge + bus_x) / 2, middle, one.pcie_level)}"
        f'<rect class="box {level}" x="{x}" y="{y:g}" width="{width}" height="{_BOX}" rx="4">'
        f"<title>{text(title)}</title></rect>"
        f'<text class="b" x="{x + 5}" y="{y + 13:g}">{text(name)}</text>'
        f'<text class="g {level}" x="{x + width - 5}" y="{y + 13:g}" text-anchor="end">{state}</text>'
        f'<text class="l" x="{x + 5}" y="{y + 26:g}">{use}</text>'
        f'<text class="l" x="{x + width - 5}" y="{y + 26:g}" text-anchor="end">{has}</text>'
    )


def _whole(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"


# --- NVLinks ---


def _nvlinks(fabric: Fabric, middles: Points, height: float) -> Iterator[str]:
    """The lines from each GPU, and the NVSwitches that they lead to."""
    step = (height - _TOP) / max(1, len(fabric.switches))
    size = min(step - 6, 52.0 if len(fabric.switches) > 1 else 140.0)
    centres = {one.address: _TOP + (place + 0.5) * step for place, one in enumerate(fabric.switches)}
    gpus = fabric.gpus
    taken: defaultdict[str, int] = defaultdict(int)
    wanted: defaultdict[str, int] = defaultdict(int)
    for gpu in gpus:
        for link in gpu.links:
            wanted[link.far] += link.is_up
    for gpu in gpus:
        lines, marked = [], []
        for place, link in enumerate(gpu.links):
            start = middles[gpu.address] + _spread(place, len(gpu.links), _BOX - 4)
            if link.is_up and not link.to_gpu and link.far in centres:
                end = centres[link.far] + _spread(taken[link.far], wanted[link.far], size - 6)
                taken[link.far] += 1
                path = _curve(start, end)
            elif link.is_up and link.to_gpu and link.far in middles:
                if link.level == "good" and link.far < gpu.address:
                    continue  # drawn from its other end
                path = _arc(start, middles[link.far], place, len(gpu.links))
            else:
                path = _stub(start)
            if link.level == "good":
                lines.append(f'<path d="{path}"/>')
            else:
                title = f"{gpu.name} link {link.number}: {link.words}"
                marked.append(f'<path class="{link.level}" d="{path}"><title>{text(title)}</title></path>')
                marked.append(_sign(_GPU_X + _GPU_WIDTH + _STUB + 5, start, link.level))
        if lines or marked:
            yield f'<g class="nv {use_class(gpu.send, gpu.receive)}">{"".join(lines)}{"".join(marked)}</g>'
    yield from (_switch_box(one, centres[one.address], size) for one in fabric.switches)


def _spread(place: int, count: int, size: float) -> float:
    """Place of one of several lines about the middle."""
    return ((place + 0.5) / count - 0.5) * size if count else 0.0


def _curve(start: float, end: float) -> str:
    left, right = _GPU_X + _GPU_WIDTH, _SWITCH_X
    middle = (left + right) / 2
    return f"M{left} {start:.1f}C{middle:g} {start:.1f} {middle:g} {end:.1f} {right} {end:.1f}"


def _arc(start: float, end: float, place: int, count: int) -> str:
    left = _GPU_X + _GPU_WIDTH
    out = left + min(118.0, 24 + 0.55 * abs(end - start))
    finish = end + _spread(place, count, _BOX - 4)
    return f"M{left} {start:.1f}C{out:.1f} {start:.1f} {out:.1f} {finish:.1f} {left} {finish:.1f}"


def _stub(start: float) -> str:
    left = _GPU_X + _GPU_WIDTH
    return f"M{left} {start:.1f}H{left + _STUB}"


def _sign(x: float, y: float, level: str) -> str:
    """Beside what is not well."""
    if level not in _MARKED:
        return ""
    return f'<text class="g s {level}" x="{x:g}" y="{y + 3.5:g}" text-anchor="middle">{GLYPHS[level]}</text>'


def _switch_box(one: Switch, centre: float, size: float) -> str:
    name = one.address.partition(":")[2] or "fabric"
    x = _SWITCH_X + _SWITCH_WIDTH / 2
    return (
        f'<rect class="box {one.level}" x="{_SWITCH_X}" y="{centre - size / 2:.1f}" width="{_SWITCH_WIDTH}" '
        f'height="{size:.1f}" rx="4"><title>NVSwitch {text(one.address)}: {text(one.words)}</title></rect>'
        f'<text x="{x:g}" y="{centre + 3.5:.1f}" text-anchor="middle">{text(name[:8])}</text>'
        f"{_sign(x, centre + 13, one.level)}"
    )
