"""Which metrics the page has, by profile."""

from __future__ import annotations

from commwatch.config.metric_profile import unexported
from commwatch.config.settings import Metrics
from commwatch.node.store import Store
from commwatch_exporters.catalogue import OPT_IN
from support.core import block
from support.pages import page_of

GPU = ("0", "0000:17:00.0")
ASKED_FOR, UNUSED = "commwatch_gpu_state", "commwatch_gpu_mig_mode"


def test_the_core_profile_leaves_off_what_no_rule_or_panel_asks_for() -> None:
    """Such a metric is not on the page; findings and the API read it all the same."""
    store = Store(frozenset(), unexported(Metrics(profile="core")))
    store.put("test", "", block({(ASKED_FOR, GPU): 0, (UNUSED, GPU): 1}), float("inf"))

    exposed = page_of(store.snapshot()).decode()
    assert ASKED_FOR in exposed
    assert UNUSED not in exposed
    assert store.snapshot().value(UNUSED, *GPU) == 1


def test_a_metric_that_is_named_is_exposed_in_each_profile() -> None:
    """opt_in adds to core, and all has everything."""
    name = sorted(OPT_IN)[0]
    assert name not in unexported(Metrics(profile="core", opt_in=(name,)))
    assert Metrics(opt_in=(name,)).asked_for == {name}
    assert Metrics(profile="all").asked_for == OPT_IN
    assert unexported(Metrics(profile="all")) == unexported(Metrics()) == frozenset()
