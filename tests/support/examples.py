"""How many examples hypothesis tries, so that each test keeps its share when more are asked for."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def examples(percent: int, *, one_fixture: bool = False) -> settings:
    """Fewer examples than the profile has, for a test whose examples take long.

    Args:
        percent: of the profile's number.
        one_fixture: the fixtures of the test are made once, for all examples together.
    """
    unwanted = [HealthCheck.too_slow, *([HealthCheck.function_scoped_fixture] if one_fixture else [])]
    number: int = settings().max_examples * percent // 100
    return settings(max_examples=max(1, number), suppress_health_check=unwanted)
