"""The row of a node about its rails as runs between nodes measure them."""

from __future__ import annotations

from commwatch.generate.dashboards.panels import Column, PanelRow, Query, Series, Table, high_is_bad
from commwatch.generate.dashboards.words import NEEDS_CLUSTER

_RAIL = "rail, device"
_CELL = f"{_RAIL}, direction"

BETWEEN_NODES = PanelRow("Between nodes", (
    Table(title="Named between nodes",
          description="Parts of this node, or the leaf and uplink above it, that runs between nodes name, and in how"
                      " many runs in a row; @cluster_suspect_runs@ make a ticket.",
          labels=("kind", "element", "symptom"),
          columns=(
              Column("runs in a row", "max by (kind, element, symptom) (commwatch_cluster_suspect_runs{@node@})",
                     due="elsewhere",
                     scale=high_is_bad("cluster_suspect_runs", "warning", "CommwatchRailSlowBetweenNodes")),
              Column("of usual", "max by (kind, element, symptom) (commwatch_cluster_suspect_ratio{@node@})",
                     unit="percentunit", due="elsewhere"),
          ),
          sort_by={"runs in a row": "down"},
          alerts=("CommwatchNodeSlowBetweenNodes", "CommwatchLeafSlow", "CommwatchPeersUnreachable"),
          no_data=f"None is named. {NEEDS_CLUSTER}"),
    Series(title="Rails against equal nodes",
           description="What each rail sent and received with the best of its partners, over what is usual among equal"
                       " nodes of the run.",
           queries=(Query(f"min by ({_CELL}) (commwatch_cluster_rail_peer_ratio{{@node@}})", "{{device}} {{direction}}",
                          due="elsewhere"),),
           unit="percentunit", no_data=NEEDS_CLUSTER),
    Series(title="Bandwidth to other nodes", description="The same in bytes per second.",
           queries=(Query(f"min by ({_CELL}) (commwatch_cluster_rail_bandwidth_bytes_per_second{{@node@}})",
                          "{{device}} {{direction}}", due="elsewhere"),),
           unit="Bps", no_data=NEEDS_CLUSTER),
    Series(title="Latency to other nodes",
           description="Of a small message there and back, halved, with the best partner of each rail.",
           queries=(Query(f"min by ({_RAIL}) (commwatch_cluster_rail_latency_seconds{{@node@}})", "{{device}}",
                          due="elsewhere"),),
           unit="s", no_data=NEEDS_CLUSTER),
    Series(title="Pairs between nodes", description="Measurements with other nodes in the last run, by outcome.",
           queries=(Query("sum by (outcome) (commwatch_cluster_pairs{@node@})", "{{outcome}}", due="elsewhere"),),
           no_data=NEEDS_CLUSTER),
    Series(title="Runs between nodes",
           description="How runs went for this node within a day, why it stayed out, and reports that did not count.",
           queries=(
               Query("sum by (outcome) (round(increase(commwatch_cluster_runs_total{@node@}[1d]))) > 0", "{{outcome}}",
                     due="elsewhere"),
               Query("sum by (reason) (round(increase(commwatch_cluster_skips_total{@node@}[1d]))) > 0",
                     "not free: {{reason}}", due="elsewhere"),
               Query("sum by (reason) (round(increase(commwatch_cluster_refused_reports_total{@node@}[1d]))) > 0",
                     "refused: {{reason}}", due="elsewhere"),
           ),
           alerts=("CommwatchClusterProbeStale",), no_data=NEEDS_CLUSTER),
), collapsed=True)  # fmt: skip
