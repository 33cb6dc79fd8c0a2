"""PyYAML's loader for what users write; by itself, since each simulated rank reads faults and needs no settings."""

from __future__ import annotations

from typing import Any

import yaml

_MOST_LEVELS = 32
"""Of values within values; no setting of ours has ten."""


class UserLoader(yaml.SafeLoader):
    """Loads YAML from users; each level of nesting costs PyYAML a call, and each bracket a check of the enclosing
    ones."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - named so by PyYAML
        """An opening bracket or brace."""
        self._check_level(self.flow_level)
        super().fetch_flow_collection_start(TokenClass)

    def add_indent(self, column: int) -> bool:
        """A line that is indented deeper."""
        self._check_level(len(self.indents))
        return bool(super().add_indent(column))

    def _check_level(self, level: int) -> None:
        if level >= _MOST_LEVELS:
            raise yaml.scanner.ScannerError(None, None, "nested too deeply; no setting is", self.get_mark())
