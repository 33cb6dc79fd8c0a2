"""Where the code can be made wrong by one small change, and a sample of those places that stays the same."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TREES = ("daemon/commwatch", "daemon/commwatch_rehearsal", "exporters/commwatch_exporters")

_COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}  # fmt: skip
_ARITHMETIC = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
_LOGIC = {ast.And: ("and", "or"), ast.Or: ("or", "and")}


@dataclass(frozen=True)
class Mutation:
    """One small change of one source file."""

    path: str
    """Below the root of the checkout."""
    function: str
    """The innermost function, with the classes around it."""
    line: int
    start: int
    """Bytes of UTF-8 from the start of the file."""
    end: int
    before: str
    after: str
    around: tuple[int, int]
    """The expression in which it stands, in the same way."""

    def apply(self, source: bytes) -> bytes:
        """The file's text with the change.

        Raises:
            ValueError: the file is not the one in which the place was found.
        """
        if source[self.start : self.end] != self.before.encode():
            raise ValueError(f"{self.path}:{self.line} reads otherwise than when the sample was taken")
        return source[: self.start] + self.after.encode() + source[self.end :]


class _Finder(ast.NodeVisitor):
    """Collects the places of one file; only what runs in functions, since tables are held by their documents."""

    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._bytes = source.encode()
        lines = source.encode().splitlines(keepends=True)
        self._offsets = [0]
        for line in lines:
            self._offsets.append(self._offsets[-1] + len(line))
        self._names: list[str] = []
        self._depth = 0
        self.found: list[Mutation] = []

    def _at(self, line: int, column: int) -> int:
        return self._offsets[line - 1] + column

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _add(self, node: ast.expr, after: str, start: int | None = None, end: int | None = None) -> None:
        """Replace an expression, or a part of it."""
        if not self._depth:
            return
        around = self._span(node)
        start = around[0] if start is None else start
        end = around[1] if end is None else end
        before = self._bytes[start:end].decode()
        self.found.append(Mutation(self._path, ".".join(self._names), node.lineno, start, end, before, after, around))

    def _between(self, node: ast.expr, left: ast.expr, right: ast.expr, pair: tuple[str, str]) -> None:
        """Swap an operator that stands between two operands."""
        old, new = pair
        at = self._bytes.find(old.encode(), self._span(left)[1], self._span(right)[0])
        if at >= 0:
            self._add(node, new, at, at + len(old))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._names.append(node.name)
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1
        self._names.pop()

    visit_FunctionDef = _visit_function  # noqa: N815 - the name that ast asks for
    visit_AsyncFunctionDef = _visit_function  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """The words of an error are not behaviour; what raises it is."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Asserts narrow types."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Before Python 3.12 the parts of an f-string have no place of their own."""

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            self._between(node, left, right, _COMPARISONS[type(operator)])
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _ARITHMETIC and not isinstance(node.left, ast.JoinedStr | ast.List | ast.Tuple):
            self._between(node, node.left, node.right, _ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(node, left, right, _LOGIC[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start, _ = self._span(node)
            self._add(node, "", start, start + len("not"))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._add(node, repr(node.value + 1))

    def visit_match_case(self, node: ast.match_case) -> None:
        """A pattern is no expression."""
        for statement in node.body:
            self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        start, end = self._span(node.test)
        self._add(node.test, f"not ({self._bytes[start:end].decode()})")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add(node.value, "None")
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await):
            self._add(node.value, "None")
            self.visit(node.value)


def mutations(root: Path) -> Iterator[Mutation]:
    """Every place of both packages, each with its change."""
    for tree in TREES:
        for file in sorted((root / tree).rglob("*.py")):
            source = file.read_text(encoding="utf-8")
            finder = _Finder(file.relative_to(root).as_posix(), source)
            finder.visit(ast.parse(source))
            yield from finder.found


def sample(root: Path, size: int, seed: str) -> list[Mutation]:
    """A sample that other changes of the tree leave as it is.

    A place counts by its file, function, text and number among equals, not by its line; those whose digests with the
    seed are the smallest are taken.
    """
    equals: dict[tuple[str, ...], int] = {}
    ranked = []
    for one in mutations(root):
        key = (one.path, one.function, one.before, one.after)
        equals[key] = number = equals.get(key, 0) + 1
        ranked.append((hashlib.sha256("\0".join((seed, *key, str(number))).encode()).hexdigest(), one))
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])[:size]]
