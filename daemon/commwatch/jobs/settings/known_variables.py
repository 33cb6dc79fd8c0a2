"""The settings that NCCL, torch and CUDA know: data/nccl_variables.yaml, read when first needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import yaml

from commwatch.jobs.settings import KnownVariables

_FILE = Path(__file__).resolve().parents[2] / "data/nccl_variables.yaml"


@cache
def known_variables() -> KnownVariables:
    """All that is known of settings by name."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content = yaml.load(_FILE.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - both loaders are safe
    return msgspec.convert(content, KnownVariables)
