"""commwatch cluster: what lies between nodes."""

from __future__ import annotations

from commwatch.commands import cluster_check, cluster_locate, cluster_plan, cluster_probe, cluster_scan
from commwatch.commands.command import Family

run = Family(
    "cluster",
    "between nodes: whether they reach each other, and which part is slow",
    "Checks and measures between nodes. check, probe and scan: one member a node, by srun, an Indexed Job, torchrun, "
    "mpirun, or by hand with a list of members; plan and locate need no network (docs/using/cluster.md).",
    "srun --ntasks-per-node=1 commwatch cluster check",
    (cluster_check.run, cluster_probe.run, cluster_scan.run, cluster_plan.run, cluster_locate.run),
)
