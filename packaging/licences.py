"""Writes docs/reference/licences.md: the licence of each installed package that a node needs, by its metadata.

``python packaging/licences.py`` in an environment with all extras; ``--check`` writes nothing and fails where the page
is old.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "licences.md"
OURS = "commwatch"
GROUPS: Mapping[str, tuple[str, str]] = {
    "": ("Always", "What the daemon and all commands need, but for torch."),
    "kubernetes": ("With `[kubernetes]`", "What the question to the kubelet needs."),
    "torch": (
        "torch",
        "What the ranks of probes need. deb, rpm and the image `core` come without it.",
    ),
    "otlp": (
        "With `[otlp]`",
        "What sends the metrics to an OpenTelemetry collector. deb, rpm and images come without it.",
    ),
}
"""By extra, and torch by itself: a package stands in the first group that brings it."""
HEAD = """# Licences of dependencies

commwatch is under Apache-2.0 ([LICENSE](../../LICENSE)). The wheel holds none of the packages below; deb and rpm
hold those of the first two tables. Each has its licence texts in its own `*.dist-info` folder.

The names are those of each package's own metadata; nobody has read the texts for this page. It is written by
`python packaging/licences.py` from the packages that are installed for Python 3.11, in the versions of
[constraints.txt](../../constraints.txt). Packages that only the tests need are not listed.

The build of torch for x86-64 on PyPI also brings NVIDIA's CUDA libraries (`nvidia-*`), under NVIDIA's own terms, and
Triton. They are not listed, because this page is made with the build without them. The NVIDIA driver and its
`libnvidia-ml.so.1` come from the node.
"""
_NAMES = {
    "Apache Software License": "Apache-2.0", "Apache 2.0": "Apache-2.0", "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0", "BSD License": "BSD", "3-Clause BSD License": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
}  # fmt: skip
"""What metadata say, by the names of SPDX where there is one."""


class LicenceError(Exception):
    """A package is not installed, or does not say its licence."""


@dataclass(frozen=True)
class Package:
    """An installed package."""

    name: str
    licence: str
    group: str
    """A key of ``GROUPS``."""
    needed_by: tuple[str, ...]
    """Packages of the same group, or commwatch itself."""


def packages() -> list[Package]:
    """All that commwatch needs here, with what that needs, in order of the groups and names.

    Raises:
        LicenceError: one is missing, or says no licence.
    """
    found: dict[str, str] = {}
    parents: dict[str, set[str]] = {}
    for group in GROUPS:
        waiting = [(OURS, frozenset({group}))]
        while waiting:
            name, extras = waiting.pop()
            for requirement in _requirements(name, extras):
                wanted = canonicalize_name(requirement.name)
                if wanted not in found or found[wanted] == group:
                    parents.setdefault(wanted, set()).add(name)
                if wanted not in found:
                    found[wanted] = group
                    waiting.append((wanted, frozenset({"", *requirement.extras})))
    order = list(GROUPS)
    listed = sorted(found, key=lambda name: (order.index(found[name]), name))
    return [_package(name, found[name], parents[name]) for name in listed]


def _requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError as error:
        raise LicenceError(f"{name} is not installed: make .venv/bin/.dev installs all") from error
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        if name == OURS and marker is None:  # what an extra of ours brings is in its own group
            is_wanted = ("torch" if requirement.name == "torch" else "") in extras
        else:
            is_wanted = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
        if is_wanted:
            yield requirement


def _installed_name(name: str) -> str:
    return str(distribution(name).metadata["Name"])


def _package(name: str, group: str, needed_by: set[str]) -> Package:
    parents = sorted(map(_installed_name, needed_by), key=str.lower)
    return Package(_installed_name(name), _licence(name), group, tuple(parents))


def _licence(name: str) -> str:
    metadata = distribution(name).metadata
    if expressions := metadata.get_all("License-Expression"):
        return str(expressions[0])
    field = "".join(metadata.get_all("License") or []).strip().partition("\n")[0]
    given = metadata.get_all("Classifier") or []
    classifiers = [one.rpartition(" :: ")[2] for one in given if one.startswith("License")]
    for said in (*classifiers, field):
        # "BSD License" leaves open which one: the field may say more.
        spoken = str(_NAMES.get(said, said))
        if spoken not in ("", "BSD", "OSI Approved"):
            return spoken
    if field or classifiers:
        return "BSD"
    raise LicenceError(f"{name} says no licence in its metadata; look into its folder, and name it here")


def page(listed: list[Package]) -> str:
    """The document."""
    parts = [HEAD]
    for group, (title, words) in GROUPS.items():
        parts.append(f"\n## {title}\n\n{words}\n\n| package | licence | needed by |\n| --- | --- | --- |\n")
        parts += [
            f"| {one.name} | {one.licence} | {', '.join(one.needed_by)} |\n" for one in listed if one.group == group
        ]
    return "".join(parts)


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page is not current")
    check = parser.parse_args().check
    try:
        document = page(packages())
    except LicenceError as error:
        print(error, file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(document, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != document:
        print(f"{PAGE} is not current; run python packaging/licences.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
