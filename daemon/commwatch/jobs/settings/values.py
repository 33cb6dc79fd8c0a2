"""Values that NCCL does not read as they were meant, and settings that another origin overrides."""

from __future__ import annotations

from commwatch.jobs.settings.facts import Level, Origin
from commwatch.jobs.settings.process import Said, View, read_number

_INNER_LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""All that NCCL tells apart, the nearest first; what is not documented is accepted too."""
_BY_NUMBER = ("LOC", "PIX", "PXB", "PHB", "SYS")
"""What the numbers of old meant; greater ones are SYS."""

WHERE: dict[Origin, str] = {
    "environment": "the environment",
    "conf_file": "the file of NCCL_CONF_FILE",
    "home_file": "~/.nccl.conf",
    "system_file": "/etc/nccl.conf",
}


def level_reached(text: str) -> str | None:
    """The level that NCCL understands; None where it takes no notice. ``nvl`` and `` NVL`` are no levels to it.

    Source: ``ncclGetLevel`` in ``src/graph/paths.cc``.
    """
    if text in _INNER_LEVELS:
        return text
    if text[:1].isascii() and text[:1].isdigit():
        return _BY_NUMBER[min(max(read_number(text).value, 0), len(_BY_NUMBER) - 1)]
    return None


def within(level: Level, reached: str) -> bool:
    """Whether a distance is within a level."""
    return _INNER_LEVELS.index(level) <= _INNER_LEVELS.index(reached)


def judge_values(view: View) -> Said:
    """Values by the kind of their variable."""
    for name in view.names:
        variable, text = view.known.variables.get(name), view.text(name)
        if variable is None or text is None:
            continue
        if variable.kind in ("flag", "integer"):
            yield from _number(view, name, text)
        elif variable.kind == "words" and text.upper() not in variable.accepted:
            choice = ", ".join(variable.accepted)
            yield view.remark(
                "not_accepted", name, "suspicious", "Not a word that this setting knows.", f"One of: {choice}."
            )
        elif variable.kind == "level":
            yield from _level(view, name, text)
        elif variable.kind == "choices":
            yield from _choices(view, name, text)
        if name in view.process.missing_files:
            words = "The file that it names is not there."
            yield view.remark("file_missing", name, "suspicious", words, "Correct the path, or take the setting out.")


def _number(view: View, name: str, text: str) -> Said:
    variable, number = view.known.variables[name], read_number(text)
    if not number.whole:
        words = "Not a number: NCCL reads the digits in front, and 0 where there are none. Words such as true are 0."
        yield view.remark("unreadable_number", name, "suspicious", words, "Write a number without unit.")
        return
    low, high = (0, 1) if variable.kind == "flag" else (variable.minimum, variable.maximum)
    if (low is not None and number.value < low) or (high is not None and number.value > high):
        span = f"from {low} to {high}" if high is not None else f"of at least {low}"
        words = "Outside of what the setting takes."
        yield view.remark("out_of_range", name, "suspicious", words, f"A number {span}.")


def _level(view: View, name: str, text: str) -> Said:
    choice = ", ".join(view.known.variables[name].accepted)
    if level_reached(text) is None:
        words = "Not a level as NCCL spells it, in capitals: it takes no notice."
        yield view.remark("not_accepted", name, "suspicious", words, f"One of: {choice}.")
    elif text not in _INNER_LEVELS:
        words = "Levels by number are of old; their meaning has changed between versions, and none stands for NVL."
        yield view.remark("old_style_level", name, "suspicious", words, f"One of: {choice}.")


def _choices(view: View, name: str, text: str) -> Said:
    unknown = [word for word in chosen(text) if word not in view.known.variables[name].accepted]
    if not unknown:
        return
    if view.version_at_least(2, 24):
        words = "It names something that NCCL does not know: since 2.24 the communicator then fails."
        yield view.remark("not_accepted", name, "harmful", words, "Take the setting out.")
    else:
        words = "It names something that NCCL does not know, and passes over."
        yield view.remark("not_accepted", name, "suspicious", words, "Take the setting out.")


def chosen(text: str) -> list[str]:
    """The algorithms or protocols that a value names, in small letters, whether it asks for them or against them.

    ``ring,tree;allreduce:^nvls`` names ring, tree and nvls.
    """
    lists = (part.rpartition(":")[2].removeprefix("^") for part in text.split(";"))
    return [word.lower() for part in lists for word in part.split(",") if word]


def judge_origins(view: View) -> Said:
    """Lines and files that do not do what they were meant to."""
    for origin, number in view.process.malformed:
        words = f"Line {number} sets a name that nothing reads: NCCL strips no blanks and knows no export."
        yield view.remark(
            "malformed_line", WHERE[origin], "useless", words, "Write NAME=value, without blanks or quotes."
        )
    for origin, reason in view.process.files_not_read:
        words = f"The file was not read ({reason}): what it sets is not judged."
        yield view.remark(
            "file_not_read", WHERE[origin], "note", words, "Run the check as the user of the process or as root."
        )
    for setting in view.process.shadowed:
        origins: list[Origin] = [one.origin for one in view.process.settings if one.name == setting.name]
        winner = origins[0] if origins else "environment"
        words = f"Set in {WHERE[setting.origin]} too, to another value; that of {WHERE[winner]} counts."
        yield view.remark("shadowed", setting.name, "note", words, "Keep one of the two.")
    plugin = view.text("NCCL_ENV_PLUGIN")
    if plugin is not None and plugin.lower() != "none":
        words = "The plugin may replace any setting: what is said here holds for what stands in environment and files."
        yield view.remark(
            "environment_plugin", "NCCL_ENV_PLUGIN", "note", words, "Look at NCCL's own lines with NCCL_DEBUG=INFO."
        )
