"""Which names are kept, and remarks on a name whatever its value."""

from __future__ import annotations

import re
from functools import lru_cache

from commwatch.jobs.settings.process import Said, View
from commwatch.jobs.settings.variables import KnownVariables

_PREFIXES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_")
_EXACT = frozenset({
    "TORCH_DISTRIBUTED_DEBUG", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES", "CUDA_FORCE_PTX_JIT", "CUDA_CACHE_DISABLE", "CUDA_MODULE_LOADING",
})  # fmt: skip

_SECRET = re.compile(r"PSK|SECRET|TOKEN|PASSW|CREDENTIAL|PRIVATE|API_?KEY")
_LIKENESS = 0.88
"""Of a typing error with the name that was meant, as difflib measures it: about one letter in ten differs."""
_MOST_COMPARED = 64
"""Names of one process that are searched for typing errors, a millisecond each: a file can hold thousands."""


def kept_name(name: str) -> bool:
    """Whether the audit keeps a variable of this name; all others are never stored."""
    return name.startswith(_PREFIXES) or name in _EXACT


def secret_name(name: str, known: KnownVariables) -> bool:
    """Whether a value is not kept even so: NCCL_PSK, and names that sound like it."""
    variable = known.variables.get(name)
    return variable.secret if variable is not None else _SECRET.search(name.upper()) is not None


def judge_names(view: View) -> Said:
    """Names that nothing reads, or that this version does not."""
    unknown = 0
    for name in view.names:
        variable = view.known.variables.get(name)
        if name in view.known.never_read:
            use = view.known.never_read[name]
            yield view.remark("never_read", name, "useless", "No version of NCCL reads this name.", f"Use: {use}.")
        elif variable is None:
            unknown += 1
            yield from _unknown(view, name, is_compared=unknown <= _MOST_COMPARED)
        elif variable.reader == "torch" and variable.use and not name.startswith("TORCH_"):
            words = "Read by torch, not by NCCL, under a name that it has given up."
            yield view.remark("old_name", name, "note", words, f"Use: {variable.use}.")
        elif variable.reader == "nccl":
            yield from _versions(view, name)


def _versions(view: View, name: str) -> Said:
    variable, version = view.known.variables[name], view.process.nccl_version
    if version is not None and not view.is_read(name):
        span = f"since {variable.since}" if variable.since and not variable.until else f"up to {variable.until}"
        words = f"NCCL reads this name {span}; the process has {'.'.join(map(str, version))}."
        if variable.until:
            yield view.remark("removed", name, "useless", words, _instead(variable.use))
        else:
            yield view.remark("not_in_version", name, "useless", words, "Take it out, or take a newer NCCL.")
    elif version is None and variable.until:
        words = f"NCCL reads this name up to {variable.until} only."
        yield view.remark("removed", name, "useless", words, _instead(variable.use))
    elif variable.use:
        yield view.remark("old_name", name, "note", "An older name, still read.", f"Use: {variable.use}.")


def _instead(use: str) -> str:
    return f"Use: {use}." if use else "Take it out."


def _unknown(view: View, name: str, *, is_compared: bool) -> Said:
    if any(name.startswith(prefix) for prefix in view.known.plugins):
        return
    meant = _nearest(name, tuple(view.known.variables), tuple(view.known.never_read)) if is_compared else ""
    if meant in view.known.never_read:
        use = view.known.never_read[meant]
        yield view.remark(
            "never_read", name, "useless", f"Like {meant}, which no version of NCCL reads.", f"Use: {use}."
        )
    elif meant:
        words = "Not a name that NCCL or torch reads; it looks like a typing error."
        yield view.remark("misspelt", name, "useless", words, f"Did you mean {meant}?")
    else:
        words = "Not a name of NCCL up to 2.32 or of torch; a plugin may read it."
        yield view.remark("unknown_name", name, "note", words, "Look whether anything reads it.")


@lru_cache(maxsize=256)
def _nearest(name: str, variables: tuple[str, ...], never_read: tuple[str, ...]) -> str:
    """The known name that is most like it; empty where none is close, and where two are equally close."""
    from difflib import SequenceMatcher, get_close_matches  # only here: most jobs make no such mistake

    known, wanted = {_folded(one): one for one in (*variables, *never_read)}, _folded(name)
    one_letter = (len(wanted) - 1) / len(wanted)  # of a short name it is more than one in ten
    close = get_close_matches(wanted, known, n=2, cutoff=min(_LIKENESS, one_letter))
    if len({SequenceMatcher(None, one, wanted).ratio() for one in close}) < len(close):
        return ""
    return known[close[0]] if close else ""


def _folded(name: str) -> str:
    """Case and underscores are what is mistyped most."""
    return name.upper().replace("_", "").replace("-", "")
