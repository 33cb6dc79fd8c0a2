"""Changes state files as no fault of a disk does: each stays a well-formed file whose values have the right types."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, Final

from support.state_files import sealed, unsealed

FORMS: Final = ("damaged", "sealed", "plain")
"""damaged: its check sum stays that of what was written. sealed: it fits. plain: without one, as of version 0.1.0."""
KINDS: Final = ("number", "number", "number", "text", "key", "doubled", "doubled", "dropped", "order", "copied", "null")


def mutated(draw: random.Random, content: bytes, form: str) -> tuple[bytes, str]:
    """A state file after one change, and in words what was changed.

    Args:
        draw: decides what.
        content: of the file; JSON.
        form: one of ``FORMS``.
    """
    before = unsealed(content)
    document, words = before, "nothing"
    for _ in range(100):  # most kinds of change fit few places
        document = copy.deepcopy(before)
        words = _change(draw, document, draw.choice(KINDS))
        if words and document and json.dumps(document) != json.dumps(before):
            break
    if form == "plain" or b'"sha256"' not in content:
        return json.dumps(document).encode(), words
    new = sealed(document)
    if form == "damaged":
        seal = json.loads(content)["sha256"].encode()
        new = new.replace(json.loads(new)["sha256"].encode(), seal, 1)
    return new, words


def _change(draw: random.Random, document: Any, kind: str) -> str:
    """Change one place in a document; empty where this kind of change fits none."""
    all_places = list(places(document))
    way, holder, key = draw.choice(all_places)
    value = holder[key]
    if kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        holder[key] = _number(draw, value)
    elif kind == "text" and isinstance(value, str):
        holder[key] = _text(draw, value, [one[1][one[2]] for one in all_places])
    elif kind == "key" and isinstance(holder, dict):
        _rename(draw, holder, str(key))
    elif kind == "doubled" and isinstance(value, list) and value:
        value.insert(draw.randrange(len(value)), copy.deepcopy(draw.choice(value)))
    elif kind == "dropped":
        del holder[key]
        return f"{way} dropped"
    elif kind == "order" and isinstance(value, list) and len(value) > 1:
        draw.shuffle(value)
    elif kind == "copied" and isinstance(holder, dict):
        like = [one for one in holder if type(holder[one]) is type(value)]
        holder[draw.choice(like)] = copy.deepcopy(value)
    elif kind == "null":
        same = [one[1][one[2]] for one in all_places if type(one[1][one[2]]) in (int, float)]
        holder[key] = draw.choice(same) if value is None and same else None
    else:
        return ""
    after = holder.get(key) if isinstance(holder, dict) else holder[key]
    return f"{way} {kind}: {value!s:.40} -> {after!s:.40}"


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Each value of a document: the way to it, what holds it, and its key or number there."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in list(inner):
        yield (*way, key), value, key
        yield from places(below, (*way, key))


def _number(draw: random.Random, value: float) -> float:
    changed = draw.choice((value + 1, value - 1, 2 * value, 10 * value, value + 1000, value / 2, -value, 0, 3, 10**9))
    return int(changed) if isinstance(value, int) else float(changed)


def _text(draw: random.Random, value: str, others: list[Any]) -> str:
    place = draw.randrange(len(value) + 1)
    return draw.choice((
        value[:place] + draw.choice("0123456789abcdefx") + value[place + 1 :],
        draw.choice([one for one in others if isinstance(one, str)]),
        value + "\x1b[2J", value + "\n", "x" * 5000, "",
    ))  # fmt: skip


def _rename(draw: random.Random, holder: dict[str, Any], key: str) -> None:
    """Another name for an entry, or the entry under another name as well."""
    value, place = holder[key], draw.randrange(len(key) + 1)
    name = str(int(key) + 1) if key.isdecimal() else key[:place] + draw.choice("0123456789abcdef") + key[place + 1 :]
    holder[name] = copy.deepcopy(value)
    if draw.random() < 0.5 and name != key:
        del holder[key]
