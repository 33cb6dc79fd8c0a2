"""Reads YAML, of users and of our own, into what is wanted, or gives one clear error with file, line and key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from commwatch.config.settings import DEFAULT_PROBES, Config, decode_quantity
from commwatch.config.simulated import is_recording
from commwatch.config.user_loader import UserLoader
from commwatch.errors import ConfigError, did_you_mean

_Kind = TypeVar("_Kind")
_MOST_CHARACTERS = 2**22
"""Of a file; the longest of ours has 35 thousand. Of a device or a pipe there may be no end."""
Steps = tuple["str | int", ...]
"""The way to a value: keys and list positions."""


@dataclass(frozen=True)
class Override:
    """A setting that does not come from the file."""

    steps: Steps
    value: object
    origin: str
    """The flag or environment variable, as the user wrote it."""


@dataclass(frozen=True)
class YamlDocument:
    """The plain values of a YAML file and the line of each key."""

    values: dict[str, Any]
    lines: Mapping[Steps, int]
    file: str
    texts_only: bool = False
    """Each value is a text; numbers and truth values are read from it where they are wanted."""

    def convert(self, values: object, kind: type[_Kind]) -> _Kind:
        """Values of the document, or of a part of it, as a type; raises msgspec's error."""
        return msgspec.convert(values, kind, strict=not self.texts_only, dec_hook=decode_quantity, str_keys=True)

    def error(self, steps: Steps, problem: str) -> ConfigError:
        """An error at a value, with the line of the nearest key that the file has."""
        here = steps
        while here and here not in self.lines:
            here = here[:-1]
        return ConfigError(self.file, self.lines.get(here), dotted(steps), problem)


def dotted(steps: Steps) -> str:
    """The way to a value as users write it: ``probes.definitions.all_reduce``, ``web.listen_addresses[0]``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def read_yaml(path: Path, *, may_be_empty: bool = False) -> YamlDocument:
    """Read a user's YAML file whose top level is a mapping.

    Raises:
        ConfigError: it cannot be read, is empty, is not YAML, names a key or a node twice, or is no mapping.
    """
    node = _composed(path, UserLoader)
    if node is None and not may_be_empty:
        raise ConfigError(str(path), None, "", "is empty; write at least one setting, or leave the file out")
    return _document(None if node is None else _without_aliases(node, str(path)), path)


def read_shipped(path: Path, kind: type[_Kind], *, texts_only: bool = False) -> _Kind:
    """Read a YAML file of ours: by the fast parser, where there is one, and with aliases.

    Args:
        texts_only: no value is what YAML takes it for: a PCI address would be a number to the base 60.

    Raises:
        ConfigError: as in ``read_yaml``, and where the values are of another kind.
    """
    name = "BaseLoader" if texts_only else "SafeLoader"
    loader = getattr(yaml, f"C{name}", getattr(yaml, name))
    return decode(_document(_composed(path, loader), path, texts_only=texts_only), kind)


def load_rendered(text: str) -> Any:
    """The values of a document that commwatch has rendered, by the parser in C where there is one: a tenth of the time.

    Raises:
        yaml.YAMLError: it is no YAML.
    """
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both make plain values alone


def dump_rendered(document: Any) -> str:
    """A document for another program, in lines of any length; as fast as ``load_rendered``."""
    return yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False, width=1000)


def _composed(path: Path, loader: Any) -> yaml.Node | None:
    """The tree of a file; None where it is empty."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), None, "", f"is not UTF-8 text (byte {error.start}); write it in UTF-8") from error
    except OSError as error:
        raise ConfigError(str(path), None, "", f"cannot be read: {error.strerror}") from error
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            str(path), None, "", f"has more than {_MOST_CHARACTERS >> 20} Mi characters; name a YAML file"
        )
    try:
        return yaml.compose(text, loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ConfigError(str(path), line, "", f"is not valid YAML: {_in_short(error)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(str(path), None, "", f"is not valid YAML: {error}") from error


def _document(node: yaml.Node | None, path: Path, *, texts_only: bool = False) -> YamlDocument:
    lines: dict[Steps, int] = {}
    values = {} if node is None else _plain(node, (), lines, str(path))
    if not isinstance(values, dict):
        raise ConfigError(str(path), 1, "", "expected settings as KEY: VALUE, found something else")
    return YamlDocument(values, lines, str(path), texts_only)


def _without_aliases(node: yaml.Node, file: str) -> yaml.Node:
    """The same node, if it names nothing twice: a few lines of aliases can stand for gigabytes."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            raise ConfigError(file, one.start_mark.line + 1, "", "is used again by an alias (*); write it out instead")
        seen.add(id(one))
        if isinstance(one, yaml.MappingNode):
            waiting += [value for _, value in one.value]
        elif isinstance(one, yaml.SequenceNode):
            waiting += one.value
    return node


_CANNOT_BE_USED = re.compile("[\\0\ud800-\udfff]")
_MERGE = "tag:yaml.org,2002:merge"
_UNUSABLE = "holds a NUL or half of a surrogate pair, which no name, path or password can; take it out"


def _plain(node: yaml.Node, steps: Steps, lines: dict[Steps, int], file: str) -> Any:
    lines.setdefault(steps, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if _CANNOT_BE_USED.search(key):
                raise ConfigError(file, line, dotted(steps), _UNUSABLE)
            if key in values:
                raise ConfigError(file, line, dotted((*steps, key)), f"is already set in line {lines[(*steps, key)]}")
            if key_node.tag == _MERGE and isinstance(value_node, yaml.MappingNode):
                merged |= _plain(value_node, steps, lines, file)
                continue
            lines[(*steps, key)] = line
            values[key] = _plain(value_node, (*steps, key), lines, file)
        return merged | values
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*steps, position), lines, file) for position, item in enumerate(node.value)]
    if _CANNOT_BE_USED.search(str(node.value)):
        raise ConfigError(file, node.start_mark.line + 1, dotted(steps), _UNUSABLE)
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(file, node.start_mark.line + 1, dotted(steps), _in_short(error)) from error
    # By PyYAML, where a form or a tag promises something else.
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        kind = node.tag.rpartition(":")[2]
        problem = f"looks like a YAML {kind} and is none; write it in quotes, or correct it"
        raise ConfigError(file, node.start_mark.line + 1, dotted(steps), problem) from error


_NAMED = re.compile(r"(alias|anchor|tag|handle) '.*'", re.DOTALL)


def _in_short(error: yaml.MarkedYAMLError) -> str:
    """The error without the user's own words: a password that begins with a special character is read as an alias or a
    tag."""
    return _NAMED.sub(r"\1", error.problem or error.context or "it cannot be read")


def load_config(path: Path | None, overrides: Sequence[Override] = ()) -> Config:
    """The configuration from a file (None: defaults) with flags and environment over it.

    Raises:
        ConfigError: one line naming file and line, or the flag, with the key and what would be right.
    """
    document = YamlDocument({}, {}, "the defaults") if path is None else read_yaml(path)
    values = document.values
    for override in overrides:
        _set(values, override, document)
    _add_default_probes(values, document)
    try:
        config = document.convert(values, Config)
    except msgspec.ValidationError as error:
        steps, problem = _explain(error, document, Config)
        raise _error_at(steps, problem, overrides, document) from error
    if config.simulation.faults and not config.simulation.preset:
        problem = "is for a simulated node: name one with --simulate, such as --simulate h100x8"
        raise _error_at(("simulation", "faults"), problem, overrides, document)
    return _from_here(config)


def _add_default_probes(values: dict[str, Any], document: YamlDocument) -> None:
    """Put the probes that are given over the default ones by name, key by key; null takes one out.

    Raises:
        ConfigError: null stands at a name that no default probe has.
    """
    section = values.get("probes")
    given = section.get("definitions") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(given, dict):
        return
    probes: dict[str, Any] = {
        name: {"measure": probe.measure, "interval": f"{probe.interval:g}s"} for name, probe in DEFAULT_PROBES.items()
    }
    for name, settings in given.items():
        if settings is not None:
            probes[name] = {**probes.get(name, {}), **settings} if isinstance(settings, dict) else settings
        elif name in probes:
            del probes[name]
        else:
            problem = f"null takes out a default probe; these are {', '.join(DEFAULT_PROBES)}"
            raise document.error(("probes", "definitions", name), problem)
    section["definitions"] = probes


def _from_here(config: Config) -> Config:
    """The same with absolute paths where a child process needs them: its working directory is another one."""
    replace = msgspec.structs.replace
    paths = replace(config.paths, sysfs=_absolute(config.paths.sysfs), procfs=_absolute(config.paths.procfs))
    kernel_log = replace(config.sources.kernel_log, path=_absolute(config.sources.kernel_log.path))
    probes = replace(config.probes, kubelet_socket=_absolute(config.probes.kubelet_socket))
    if is_recording(config.simulation.preset) and not config.simulation.faults:
        probes = replace(probes, enabled=False)  # a recording has no answer for a collective that nobody ran
    return replace(config, paths=paths, sources=replace(config.sources, kernel_log=kernel_log), probes=probes)


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else path


def decode(document: YamlDocument, kind: type[_Kind]) -> _Kind:
    """The values of a document as what they are to be.

    Raises:
        ConfigError: as in ``load_config``.
    """
    try:
        return document.convert(document.values, kind)
    except msgspec.ValidationError as error:
        raise document.error(*_explain(error, document, kind)) from error


def _error_at(steps: Steps, problem: str, overrides: Sequence[Override], document: YamlDocument) -> ConfigError:
    """An error at a setting, with the flag or the line that set it."""
    for override in overrides:
        if steps[: len(override.steps)] == override.steps:
            return ConfigError(override.origin, None, dotted(steps), problem)
    for override in overrides:
        # A rule of a whole section names the value that breaks it, not the key.
        given = override.value if isinstance(override.value, list) else [override.value]
        if override.steps[: len(steps)] == steps and any(str(value) in problem for value in given):
            return ConfigError(override.origin, None, dotted(override.steps), problem)
    return document.error(steps, problem)


def _set(values: dict[str, Any], override: Override, document: YamlDocument) -> None:
    place = values
    for depth, step in enumerate(override.steps[:-1]):
        inner = place.setdefault(str(step), {})
        if not isinstance(inner, dict):
            raise document.error(override.steps[: depth + 1], "expected settings as KEY: VALUE")
        place = inner
    place[str(override.steps[-1])] = override.value


_UNKNOWN_KEY = re.compile(r"Object contains unknown field `(?P<key>.*)`")
_MISSING_KEY = re.compile(r"Object missing required field `(?P<key>.*)`")
_AT = re.compile(r"^(?P<problem>.*?)(?: - at `(?P<key>key` in `)?(?P<path>\$.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[\]]+)|\[(?P<position>\d+|\.\.\.)\]")


def _explain(error: msgspec.ValidationError, document: YamlDocument, kind: Any) -> tuple[Steps, str]:
    """Where in the settings msgspec found what, in words of ours."""
    match = _AT.match(str(error))
    assert match is not None, error  # noqa: S101 - the expression matches any text
    steps = _resolve(match["path"] or "$", document, error, kind, in_key=match["key"] is not None)
    problem, values = match["problem"], document.values
    if unknown := _UNKNOWN_KEY.fullmatch(problem):
        known = _known_keys(steps, kind)
        hint = did_you_mean(unknown["key"], known, f"known here: {', '.join(known)}")
        return (*steps, unknown["key"]), f"unknown key; {hint}"
    if missing := _MISSING_KEY.fullmatch(problem):
        return (*steps, missing["key"]), "is missing"
    if problem.startswith("Invalid enum value"):
        wrong = steps[-1] if match["key"] else _value_at(steps, values)
        return steps, f"{wrong!r} is not possible; possible: {_choices(steps, kind)}"
    if form := _form(steps, kind, in_key=match["key"] is not None) if "matching regex" in problem else "":
        return steps, f"expected {form}; got {steps[-1] if match['key'] else _value_at(steps, values)!r}"
    return steps, _in_our_words(problem, _value_at(steps, values))


def _in_our_words(problem: str, value: object) -> str:
    problem = problem.replace("`int | float", "`float")
    names = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
             "object": "settings as KEY: VALUE", "null": "nothing"}  # fmt: skip
    text = re.sub(r"`(\w+)( \| null)?`", lambda match: names.get(match[1], match[1]), problem)
    text = text.replace("Expected", "expected", 1).replace(", got", "; got", 1)
    if "matching regex" in problem or " of length " in problem or "`float`" in problem or "`int`" in problem:
        text = f"{text}; got {value!r}" if "; got" not in text else text
    return text


def _value_at(steps: Steps, values: object) -> object:
    for step in steps:
        if isinstance(values, dict) and isinstance(step, str):
            values = values.get(step)
        elif isinstance(values, list) and isinstance(step, int) and step < len(values):
            values = values[step]
    return values


def _resolve(path: str, document: YamlDocument, error: msgspec.ValidationError, kind: Any, *, in_key: bool) -> Steps:
    """The steps of a msgspec path; its ``[...]`` does not say which entry of a mapping, so each is tried alone."""
    steps: Steps = ()
    for match in _STEP.finditer(path[1:]):
        if match["name"] is not None:
            steps = (*steps, match["name"])
        elif match["position"] != "...":
            steps = (*steps, int(match["position"]))
        else:
            steps = (*steps, _culprit(steps, document, str(error), kind))
    return (*steps, _culprit(steps, document, str(error), kind)) if in_key else steps


def _culprit(steps: Steps, document: YamlDocument, message: str, kind: Any) -> str:
    entries = _value_at(steps, document.values)
    if not isinstance(entries, dict):
        return "?"
    for key, value in entries.items():
        alone: Any = {key: value}
        for step in reversed(steps):
            alone = {step: alone}
        try:
            document.convert(alone, kind)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return str(key)
    return "?"


def _kind_at(steps: Steps, root: Any) -> Any:
    """The type that a setting has, as msgspec describes it."""
    kind: Any = msgspec.inspect.type_info(root)
    for step in steps:
        if isinstance(kind, msgspec.inspect.StructType):
            kind = next(field.type for field in kind.fields if field.name == step)
            if isinstance(kind, msgspec.inspect.UnionType):  # of something and nothing
                kind = next(one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType))
        elif isinstance(kind, msgspec.inspect.DictType):
            # A key that is not possible is asked for itself; of one that is, the value is meant.
            kind = kind.key_type if isinstance(kind.key_type, msgspec.inspect.LiteralType) else kind.value_type
        elif isinstance(kind, (msgspec.inspect.VarTupleType, msgspec.inspect.ListType)):
            kind = kind.item_type
    return kind


def _known_keys(steps: Steps, root: Any) -> list[str]:
    kind = _kind_at(steps, root)
    return [field.name for field in kind.fields] if isinstance(kind, msgspec.inspect.StructType) else []


def _form(steps: Steps, root: Any, *, in_key: bool) -> str:
    """What a text has to be, as its ``Meta`` describes it; empty where that does not."""
    kind = _kind_at(steps[:-1], root).key_type if in_key else _kind_at(steps, root)
    described = kind.extra_json_schema if isinstance(kind, msgspec.inspect.Metadata) else None
    return str((described or {}).get("description", ""))


def _choices(steps: Steps, root: Any) -> str:
    kind = _kind_at(steps, root)
    return ", ".join(map(str, kind.values)) if isinstance(kind, msgspec.inspect.LiteralType) else ""
