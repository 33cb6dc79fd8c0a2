"""Prints what packages and images install of commwatch's requirements: all but torch, with the extra ``kubernetes``.

A node has one torch for its jobs, built for its driver, or takes that of requirements-probe.txt.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import requires

from packaging.requirements import Requirement

EXTRAS = ("kubernetes",)
"""Of commwatch."""
LEFT_OUT = "torch"
"""It is 0.9 GB on disk without the libraries of CUDA, several GB with them; all else is 53 MB."""


def shipped(lines: Iterable[str]) -> list[str]:
    """Those of a distribution's requirements that packages and images install, without their markers.

    Args:
        lines: as ``importlib.metadata.requires`` gives them.
    """
    found = []
    for line in lines:
        one = Requirement(line)
        if one.name != LEFT_OUT and (
            one.marker is None or any(one.marker.evaluate({"extra": name}) for name in EXTRAS)
        ):
            one.marker = None
            found.append(str(one))
    return found


if __name__ == "__main__":
    print(*shipped(requires("commwatch") or ()), sep="\n")
