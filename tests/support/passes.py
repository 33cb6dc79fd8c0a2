"""One test over many like cases, where a test for each would cost more than the check itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def in_one_pass(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for all cases, and report each that fails; as ``pytest.mark.parametrize`` in a single test.

    Args:
        names: of the arguments that differ, separated by commas.
        cases: their values, of which at least one is needed; tuples where there are several names.
    """
    arguments = [name.strip() for name in names.split(",")]
    listed = [case if len(arguments) > 1 else (case,) for case in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_all(*own: Any, **fixtures: Any) -> None:
            assert listed, "there is no case"
            failures = []
            for case in listed:
                try:
                    test(*own, **fixtures, **dict(zip(arguments, case, strict=True)))
                except Exception as error:  # all cases are tried, and each that fails is named
                    failures.append(f"{case}: {type(error).__name__}: {error}")
            assert not failures, f"{len(failures)} of {len(listed)} cases:\n" + "\n".join(failures)

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in arguments]
        run_all.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run_all

    return decorate
