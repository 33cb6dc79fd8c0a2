"""What the rules of the findings read, found in their code: for the documentation, so that it cannot say otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from commwatch.config.thresholds import Thresholds
from commwatch.findings.codes import CODES
from commwatch.findings.looking import rule_name
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import Look
from commwatch_exporters.catalogue import CATALOGUE

_THRESHOLDS = frozenset(field.name for field in fields(Thresholds))


@dataclass(frozen=True, slots=True)
class RuleSource:
    """One rule with all that its code names."""

    name: str
    docstring: str
    codes: frozenset[str]
    metrics: tuple[str, ...]
    """In the order of the catalogue."""
    thresholds: tuple[str, ...]


def rule_sources() -> list[RuleSource]:
    """All rules, in their order."""
    return [_source(look) for rules in RULE_SETS for look in rules.looks]


def _source(look: Look) -> RuleSource:
    named = set(_named(look, set()))
    return RuleSource(
        name=rule_name(look),
        docstring=(look.__doc__ or "").strip(),
        codes=frozenset(named & CODES.keys()),
        metrics=tuple(metric for metric in CATALOGUE if metric in named),
        thresholds=tuple(sorted(named & _THRESHOLDS)),
    )


def _named(value: Any, visited: set[int]) -> Iterator[str]:
    """All texts and names in a value: in functions also in what they call and in the tables that they use."""
    if isinstance(value, str):
        yield value
        return
    if id(value) in visited:
        return
    visited.add(id(value))
    for part in _parts(value):
        yield from _named(part, visited)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, FunctionType):
        return _parts_of_function(value) if _is_ours(value) else ()
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    if isinstance(value, tuple | list | set | frozenset):
        return value
    if isinstance(value, type):
        methods = [one for one in vars(value).values() if isinstance(one, FunctionType)]
        return methods if _is_ours(value) else ()
    if is_dataclass(value):
        return (type(value), *(getattr(value, field.name) for field in fields(value)))
    return ()


def _parts_of_function(function: FunctionType) -> Iterator[Any]:
    for code in _codes(function.__code__):
        yield from (constant for constant in code.co_consts if isinstance(constant, str | tuple | frozenset))
        for name in code.co_names:
            yield name
            if name in function.__globals__:
                yield function.__globals__[name]
    for cell in function.__closure__ or ():
        yield cell.cell_contents


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_ours(value: Callable[..., Any]) -> bool:
    return value.__module__.startswith("commwatch.findings.rules")
