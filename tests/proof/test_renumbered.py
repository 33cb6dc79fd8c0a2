"""The same node under other PCI addresses: all that is found of its faults is the same, to the last number."""

from __future__ import annotations

import pytest

from support.fault_stories import Story, stories
from support.renumbered import BUILT_ON, CHOSEN, KEPT_ASIDE, chosen, differences

STORIES_OF_A_SEED = 4


def _played() -> dict[str, Story]:
    drawn = {f"{seed} {one.number}": one for seed in (BUILT_ON, KEPT_ASIDE) for one in stories(STORIES_OF_A_SEED, seed)}
    return {name: chosen(name) for name in CHOSEN} | drawn


@pytest.mark.parametrize("story", _played().values(), ids=_played())
def test_the_order_of_addresses_decides_nothing(story: Story) -> None:
    """Neither what is found, nor its causes, evidence and next steps."""
    assert differences(story) == [], "; ".join(one.words for one in story.faults)
