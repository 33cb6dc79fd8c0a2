"""Confidential computing, which switches the GPUs' performance counters off."""

from __future__ import annotations

from typing import Final

import pynvml

from commwatch.sources.nvml import codes

COUNTER: Final = "system_conf_compute_state"
"""Label ``counter`` of ``commwatch_counters_state``."""
OFF, ON, ON_WITH_DEVELOPER_TOOLS = range(3)


def confidential_computing_mode() -> tuple[int | None, int]:
    """Mode of this node, or None where the driver does not say; and NVML's return code."""
    try:
        state = pynvml.nvmlSystemGetConfComputeState()
    except pynvml.NVMLError as error:
        return None, error.value
    if not state.ccFeature:
        return OFF, codes.SUCCESS
    return (ON_WITH_DEVELOPER_TOOLS if state.devToolsMode else ON), codes.SUCCESS
