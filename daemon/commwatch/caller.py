"""The parts of the caller's environment that are used: where programs are, and where temporary files go.

A command that runs as root may have been called by another user. It then follows the environment only to places that
root alone can change.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

_TEMPORARY = "/tmp"  # noqa: S108 - sticky on every Linux: nobody replaces what another user has made there


def search_path(own: Mapping[str, str]) -> str:
    """Folders in which programs are looked up: ``PATH`` without relative folders.

    For root it holds only folders that root alone can change.

    Args:
        own: the environment.
    """
    named = [one for one in own.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(one)]
    if os.geteuid() == 0:
        named = [real for one in named if (real := root_only(one))]
    return os.pathsep.join(named) or os.defpath


def temporary_folder() -> str:
    """The folder for temporary files; for root not ``TMPDIR`` where another user can replace what is in it."""
    if os.geteuid() != 0:
        import tempfile  # readers need none of it

        return tempfile.gettempdir()
    return root_only(os.environ.get("TMPDIR", ""), shared=True) or _TEMPORARY


def root_only(path: str, *, shared: bool = False) -> str:
    """Where a path leads without links, if root alone can change what is there; empty if not, or if nothing is there.

    Args:
        shared: others may add files of their own, as in ``/tmp``.
    """
    if not os.path.isabs(path):
        return ""
    real = Path(os.path.realpath(path))
    try:
        if not (_is_roots(real, sticky=shared) and all(_is_roots(folder, sticky=True) for folder in real.parents)):
            return ""
    except OSError:
        return ""
    return str(real)


def _is_roots(path: Path, *, sticky: bool) -> bool:
    """Whether a file or folder belongs to root and no one else may write to it.

    Args:
        path: has no links.
        sticky: a folder in which others may add files, but not replace those of root, will do.
    """
    status = path.lstat()
    others_write = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != 0)
    return status.st_uid == 0 and (not others_write or (sticky and bool(status.st_mode & stat.S_ISVTX)))
