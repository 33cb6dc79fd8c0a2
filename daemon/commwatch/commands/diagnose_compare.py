"""commwatch diagnose --compare: what changed between two saved diagnoses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from commwatch.errors import ExitCode, UsageError
from commwatch.views.terminal import print_json, print_lines, screen

_MOST_BYTES = 2**26
"""A diagnosis of 64 GPUs with every pair has less than 4 MB."""


def run_compare(files: Sequence[str], *, as_json: bool) -> int:
    """Compare and print.

    Args:
        files: the earlier one and the later one, as ``commwatch diagnose --json`` prints them.
        as_json: print JSON.

    Returns:
        The exit code: 0 where nothing got worse, 1 where something did.

    Raises:
        UsageError: one cannot be read or holds something else.
    """
    from commwatch.diagnosis.compare import compared, comparison_lines
    from commwatch.diagnosis.document import DIAGNOSIS_SCHEMA, Diagnosis
    from commwatch.lines import WIDTH

    def read(file: str) -> Diagnosis:
        try:
            with open(file, "rb") as stream:
                content = stream.read(_MOST_BYTES + 1)
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}") from error
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{file}: more than {_MOST_BYTES // 2**20} MiB; a diagnosis is smaller")
        try:
            return msgspec.json.decode(content, type=Diagnosis)
        except (ValueError, RecursionError) as error:
            expected = f"expected {DIAGNOSIS_SCHEMA}, what commwatch diagnose --json prints"
            raise UsageError(f"{file}: is no diagnosis ({error}); {expected}") from error

    told = compared(*map(read, files))
    if as_json:
        print_json(told)
    else:
        print_lines(comparison_lines(told, width=screen()[1] or WIDTH))
    return ExitCode.FOUND if told.is_worse else ExitCode.OK
