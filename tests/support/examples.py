"""How many examples hypothesis tries, so that each test keeps its share when more are asked for."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

USUAL = 100
"""Of a test that names no number, in the profile that is loaded unless another one is asked for."""


def examples(number: int, *, one_fixture: bool = False) -> settings:
    """Another number of examples than the usual one; more of them in a profile that has more.

    Args:
        number: in the profile that is loaded unless another one is asked for.
        one_fixture: the fixtures of the test are made once, for all examples together.
    """
    unwanted = [HealthCheck.too_slow, *([HealthCheck.function_scoped_fixture] if one_fixture else [])]
    scaled = max(1, number * settings().max_examples // USUAL)
    return settings(max_examples=scaled, suppress_health_check=unwanted)
