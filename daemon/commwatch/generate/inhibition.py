"""Which alert silences which: one table for alerts/alertmanager.example.yml and the count of the fleet's alerts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commwatch.node.xids import LINK_SXIDS, LINK_XIDS

EXAMPLE: Final = Path("alerts/alertmanager.example.yml")

_NODE: Final = ("cluster", "job", "instance")
_SLOW: Final = "ProbeBandwidthLow|ProbeBandwidthBelowPeers"
_NOT_REPLACED: Final = 'replaced=""'
"""Of a GPU that is gone: its slot holds no other one."""


@dataclass(frozen=True, slots=True)
class Inhibition:
    """Alerts that silence their own symptoms. Names are alternatives of a regular expression, without ``Commwatch``."""

    why: str
    causes: str
    symptoms: str
    same: tuple[str, ...] = ()
    """Labels beside those of the scope that both must have, with the same value. Each cause or each symptom has
    them: Alertmanager takes two labels that are both missing for equal."""
    symptom_if: str = ""
    """A further matcher of the symptoms."""
    cause_if: str = ""
    """The same of the causes."""
    scope: tuple[str, ...] = _NODE

    @property
    def is_of_a_node(self) -> bool:
        return self.scope == _NODE

    def matchers(self, names: str, further: str) -> list[str]:
        """The matchers of one side, which Alertmanager and Prometheus write alike."""
        full = "|".join(f"Commwatch{name}" for name in names.split("|"))
        operator = "=~" if re.search(r"[|.]", full) else "="
        return [f'alertname{operator}"{full}"', *([further] if further else [])]


INHIBITIONS: Final[Sequence[Inhibition]] = (
    Inhibition(
        "A daemon that is down reports nothing about itself; what was wrong on the node stays open.",
        causes="DaemonDown",
        symptoms="CollectorFailing|DataStale|DeviceUnread|TextfileStale|Worker.+|RuleFailing|ConfigReloadFailing",
    ),
    Inhibition(
        "Without a single daemon each of them is down.",
        causes="DaemonAbsent", symptoms="DaemonDown", scope=("cluster", "job"),
    ),
    Inhibition(
        "As above, for the pages of the fleet.",
        causes="DaemonAbsent", symptoms="FaultOnManyNodes|FaultOnMoreNodes", symptom_if='fault="CommwatchDaemonDown"',
        scope=("cluster", "job"),
    ),
    Inhibition(
        "A driver that cannot be used takes its GPUs with it, and what runs on them.",
        causes="DriverUnusable",
        symptoms="GpuLost|GpuNotAnswering|GpuNotListed|GpuRecoveryNeeded|Fabric.+|NvlinkDown|PartsNeverSeen"
        "|ProbeFailing|ProbeErrorRateRise",
    ),
    Inhibition(
        "As above, of its collectors.",
        causes="DriverUnusable", symptoms="CollectorFailing|DataStale", symptom_if='collector=~"nvml.*"',
    ),
    Inhibition(
        "As above, of its readers.",
        causes="DriverUnusable", symptoms="Worker.+", symptom_if='worker=~"nvml.*"',
    ),
    Inhibition(
        "A GPU that does not answer becomes one that is lost.",
        causes="GpuLost", cause_if=_NOT_REPLACED, symptoms="GpuNotAnswering|GpuNotListed", same=("pci_bus_id",),
    ),
    Inhibition(
        "A GPU that is gone takes its links and its slot with it.",
        causes="GpuLost|GpuNotAnswering",
        cause_if=_NOT_REPLACED,
        symptoms="Nvlink.+|C2cDown|Pcie.+|Fabric.+|XidFabric|XidFatal|XidNonfatal|GpuRecoveryNeeded|StaticAsymmetry",
        same=("pci_bus_id",),
    ),
    Inhibition(
        "The firmware of a GPU that does not answer times out. Other Xids of it are sent: they may say why.",
        causes="GpuLost|GpuNotAnswering", cause_if=_NOT_REPLACED, symptoms="XidGpu", symptom_if='xid=~"119|120"',
        same=("pci_bus_id",),
    ),
    Inhibition(
        "A reader hangs in the GPU that does not answer.",
        causes="GpuNotAnswering", symptoms="Worker.+", symptom_if='worker=~"nvml.*"',
    ),
    Inhibition(
        "As above, of samples: they wait until its call has come back.",
        causes="GpuNotAnswering", symptoms="CollectorFailing|DataStale", symptom_if='collector="nvml_pcie_sampled"',
    ),
    Inhibition(
        "A call over all GPUs fails with one of them.",
        causes="GpuLost|GpuNotAnswering|FabricUnhealthy|FabricNotJoined", symptoms="ProbeFailing|ProbeErrorRateRise",
    ),
    Inhibition(
        "A job that is stuck for long was stuck before.",
        causes="JobHung", symptoms="JobStuck", same=("gpu", "pci_bus_id"),
    ),
    Inhibition(
        "A link that goes down has errors before and after.",
        causes="NvlinkDown",
        symptoms="NvlinkRecovered|NvlinkRecovering|NvlinkRecoveriesRising|NvlinkReplays|NvlinkBitErrors|NvlinkPacketErrors"
        "|NvlinkRemoteErrors",
        same=("pci_bus_id", "link"),
    ),
    Inhibition(
        "The driver reports the link that is down, too.",
        causes="NvlinkDown", symptoms="XidFabric|XidNonfatal",
        symptom_if=f'xid=~"{LINK_XIDS}"',
        same=("pci_bus_id",),
    ),
    Inhibition(
        "As above, of links of all GPUs. Of other Xids the rules of the alerts know which came with a fall.",
        causes="NvlinkDown", cause_if='gpu="all"', symptoms="XidNonfatal", symptom_if=f'xid=~"{LINK_XIDS}"',
    ),
    Inhibition(
        "The NVSwitch reports the link that went down, too.",
        causes="NvlinkDown", symptoms="SxidFatal", symptom_if=f'sxid=~"{LINK_SXIDS}"', same=("nvswitch",),
    ),
    Inhibition(
        "As above, of links of all GPUs where no NVSwitch is known to have them.",
        causes="NvlinkDown", cause_if='pci_bus_id="all"', symptoms="SxidFatal", symptom_if=f'sxid=~"{LINK_SXIDS}"',
    ),
    Inhibition(
        "A GPU whose links are down, or which is not in the fabric, is slow in each comparison over NVLink.",
        causes="NvlinkDown|FabricUnhealthy|FabricNotJoined",
        symptoms="NvlinkBelowSiblings|FabricDegraded", same=("pci_bus_id",),
    ),
    Inhibition(
        "As above, in the pair matrix, which names it by its index.",
        causes="GpuNotAnswering|NvlinkDown|FabricUnhealthy|FabricNotJoined",
        symptoms="PartSuspect", same=("gpu",),
    ),
    Inhibition(
        "The driver refuses NVLink to a GPU that is not in the fabric.",
        causes="FabricUnhealthy|FabricNotJoined", symptoms="NvlinkP2pRefused",
    ),
    Inhibition(
        "As above, to one that has lost most of its links.",
        causes="NvlinkDown", cause_if='link="several"', symptoms="NvlinkP2pRefused",
    ),
    Inhibition(
        "Collectives over NVLink run at the speed of the GPU with the fewest links. Copies to the host do not.",
        causes="NvlinkDown|FabricUnhealthy",
        symptoms=_SLOW, symptom_if='probe!="host_copies"',
    ),
    Inhibition(
        "A slot that has lost lanes has lost its generation and retrained as well.",
        causes="PcieWidthDropped", symptoms="PcieGenerationLow|PcieReplays|PcieRetrained|PartSuspect",
        same=("pci_bus_id",),
    ),
    Inhibition(
        "A device with fatal PCIe errors has lesser ones, too.",
        causes="PcieFatal", symptoms="PcieNonfatal|PcieCorrected", same=("device",),
    ),
    Inhibition(
        "A port that is down or gone has flapped, and drops what was under way.",
        causes="RdmaPortDown",
        symptoms="RdmaPortMissing|RdmaPortFlapping|RdmaPortSlow|RdmaErrors|RdmaRetransmitting|RdmaDropping",
        same=("device", "port"),
    ),
    Inhibition(
        "A wrong result is a failure, and each failure counts in the rate.",
        causes="ProbeWrongResult", symptoms="ProbeFailing|ProbeErrorRateRise", same=("probe", "backend"),
    ),
    Inhibition(
        "As above.",
        causes="ProbeFailing", symptoms="ProbeErrorRateRise", same=("probe", "backend"),
    ),
    Inhibition(
        "Jobs report the same from their side: GPUs and NVLink.",
        causes="DriverUnusable|GpuLost|GpuNotAnswering|NvlinkDown|FabricUnhealthy|FabricNotJoined",
        symptoms="NcclErrors", symptom_if='category=~"cuda|nvls|mnnvl|p2p"',
    ),
    Inhibition(
        "As above, of the network.",
        causes="RdmaPortDown", symptoms="NcclErrors", symptom_if='category=~"ib_async|ib_retry|ib_other"',
    ),
    Inhibition(
        "What a setting forbids, the job's log shows.",
        causes="NcclSettingHarmful", cause_if='variable=~"NCCL_(IB_DISABLE|NET|IB_HCA|P2P_DISABLE)"',
        symptoms="NcclTransportFallback", symptom_if='kind=~"ib_disabled|net_socket|hca_list|p2p_disabled"',
    ),
    Inhibition(
        "Parts that were never seen are fewer than those of equal nodes.",
        causes="PartsNeverSeen", symptoms="InventoryBelowPeers", same=("kind",),
    ),
    Inhibition(
        "One fault on many nodes is one page: it silences those of the nodes. Their label `fault` is their own name.",
        causes="FaultOnManyNodes|SoftwareFaultOnManyNodes", symptoms=".+", symptom_if='instance!=""',
        scope=("cluster", "job", "simulated", "fault"),
    ),
)  # fmt: skip
"""No alert silences, directly or by way of others, what silences it, and none silences a graver one."""


def explained(alerts: str) -> str:
    """PromQL that takes the symptoms away from alerts that fire.

    Args:
        alerts: the matchers of the alerts, without brackets: ``job="commwatch", alertstate="firing"``.
    """
    lines = []
    for one in INHIBITIONS:
        if one.is_of_a_node:
            symptom = ", ".join((alerts, *one.matchers(one.symptoms, one.symptom_if)))
            cause = ", ".join((alerts, *one.matchers(one.causes, one.cause_if)))
            on = ", ".join((*one.scope, *one.same))
            lines.append(f"ALERTS{{{symptom}}} and on ({on}) ALERTS{{{cause}}}")
    # One `unless` for all: each would compare every alert that fires, and what an `or` holds are few.
    return "unless (\n  " + "\n  or ".join(lines) + "\n)"


def inhibit_rules() -> str:
    """The table as Alertmanager's ``inhibit_rules``, one remark for each."""

    def written(matchers: Iterable[str]) -> str:
        return "[" + ", ".join(f"'{one}'" for one in matchers) + "]"

    return "".join(
        f"  # {one.why}\n"
        f"  - source_matchers: {written(one.matchers(one.causes, one.cause_if))}\n"
        f"    target_matchers: {written(one.matchers(one.symptoms, one.symptom_if))}\n"
        f"    equal: [{', '.join((*one.scope, *one.same))}]\n"
        for one in INHIBITIONS
    )


def example_with_table(text: str) -> str:
    return text.partition("inhibit_rules:\n")[0] + "inhibit_rules:\n" + inhibit_rules()
