"""A page as a browser takes it apart, and what holds for each page that we serve."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise

_VOID = frozenset({"meta", "link", "br", "path", "rect", "circle", "polyline"})
"""Elements that have no end of their own; those of SVG are closed where they begin."""


class Page(HTMLParser):
    """Elements, tables by heading, and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        """By the heading above; without the signs that stand for colours."""
        self.texts: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self._title = ""
        self.feed(text)
        self.close()

        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember the element, and begin a row or cell."""
        assert len({name for name, _ in attrs}) == len(attrs)
        element = (tag, dict(attrs))
        self.elements.append(element)
        if tag not in _VOID:
            self.open.append(element)
        if tag in ("h1", "h2", "h3"):
            self.headings.append((int(tag[1]), ""))
        if tag == "tr":
            self.tables.setdefault(self._title, []).append([])
        if tag in ("td", "th"):
            self.tables[self._title][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Elements of SVG."""
        assert tag in _VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """Elements end in the order in which they began, the other way round."""
        if tag not in _VOID:
            assert tag == self.open.pop()[0]

    def handle_data(self, data: str) -> None:
        """Put a text where it belongs."""
        around = {tag for tag, _ in self.open}
        if "style" in around:
            return
        self.texts.append(data)
        if around & {"h1", "h2", "h3"}:
            level, before = self.headings[-1]
            self.headings[-1] = (level, before + data)
            self._title = self.headings[-1][1]
        hidden = any(names.get("aria-hidden") == "true" for _, names in self.open)
        if around & {"td", "th"} and "svg" not in around and not hidden:
            self.tables[self._title][-1][-1] += data

    def count(self, tag: str, kind: str = "") -> int:
        """How many elements there are of a tag, and a class."""
        return sum(one == tag and kind in (names.get("class") or "").split(" ") for one, names in self.elements
                   ) if kind else sum(one == tag for one, _ in self.elements)  # fmt: skip

    @property
    def words(self) -> str:
        """All text."""
        return " ".join(self.texts)


def check(text: str) -> Page:
    """What a person or a browser may rely on: one h1, headings in order, named tables with headings, no loose end."""
    page = Page(text)
    names = [name for _, attributes in page.elements for name in attributes]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    levels = [level for level, _ in page.headings]
    tables = [attributes for tag, attributes in page.elements if tag == "table"]

    assert text.startswith('<!doctype html><html lang="en">')
    assert len(set(ids)) == len(ids)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.elements if tag == "th")
    assert all(attributes.get("aria-labelledby") in ids for attributes in tables)
    assert all(one in ids for _, attributes in page.elements if (one := attributes.get("aria-labelledby")))
    assert {"script", "img", "link", "iframe", "form", "object"}.isdisjoint(tag for tag, _ in page.elements)
    assert not [name for name in names if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    for tag, attributes in page.elements:
        if tag == "svg":
            assert attributes.get("aria-hidden") or attributes.get("aria-label") or attributes.get("aria-labelledby")
    return page
