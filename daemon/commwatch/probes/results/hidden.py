"""How much of a sum of gradients computing hides: alone, computing alone, and both at once."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from commwatch.probes.rank_plan import Operation
from commwatch.units import format_percent, format_seconds


class Hidden(msgspec.Struct, frozen=True, kw_only=True):
    """The three times of a training-like probe, of the slowest rank, and what follows."""

    all_reduce_seconds: float
    product_seconds: float
    both_seconds: float
    hidden_ratio: float
    """Of what could be hidden, the shorter of the two; 1: both at once take no longer than the longer one alone."""

    @property
    def words(self) -> str:
        """What it means for a training step, in a sentence."""
        product, total = format_seconds(self.product_seconds), format_seconds(self.both_seconds)
        return (
            f"a sum of {format_seconds(self.all_reduce_seconds)} under a product of {product} takes {total}: "
            f"{format_percent(self.hidden_ratio)} of the shorter one is hidden"
        )


def hidden_of(seconds: Mapping[Operation, float]) -> Hidden | None:
    """From the times of the steps by operation; None for other probes.

    Args:
        seconds: of one call on the slowest rank.
    """
    alone, product, both = (seconds.get(one) for one in ("all_reduce", "matrix_product", "overlapped"))
    if alone is None or product is None or both is None:
        return None
    share = (alone + product - both) / min(alone, product)
    return Hidden(
        all_reduce_seconds=alone, product_seconds=product, both_seconds=both, hidden_ratio=min(max(share, 0.0), 1.0)
    )
