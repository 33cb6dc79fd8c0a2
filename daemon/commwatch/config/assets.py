"""Finds the shipped files (alerts, dashboards, units): beside the code when installed, else at the checkout's root."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def asset(relative: str) -> Path:
    """The path of a shipped file or folder, such as ``alerts/thresholds.yaml``.

    Raises:
        FileNotFoundError: the installation lacks it.
    """
    for root in (_PACKAGE / "assets", _PACKAGE.parents[1]):
        path = root / relative
        if path.exists():
            return path
    raise FileNotFoundError(f"{relative} is neither in {_PACKAGE / 'assets'} nor in {_PACKAGE.parents[1]}")
