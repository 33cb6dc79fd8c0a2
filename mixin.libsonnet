// The alerts, the recorded series and the dashboards, for kube-prometheus and other users of jsonnet (docs/using/alerting.md).
local groups = std.flattenArrays([
  std.parseYaml(file).groups
  for file in [
    importstr 'alerts/rules/cluster.yaml',
    importstr 'alerts/rules/daemon.yaml',
    importstr 'alerts/rules/ethernet.yaml',
    importstr 'alerts/rules/fabric.yaml',
    importstr 'alerts/rules/fleet.yaml',
    importstr 'alerts/rules/gpu.yaml',
    importstr 'alerts/rules/inventory.yaml',
    importstr 'alerts/rules/job.yaml',
    importstr 'alerts/rules/kernel.yaml',
    importstr 'alerts/rules/links.yaml',
    importstr 'alerts/rules/node.yaml',
    importstr 'alerts/rules/nvlink.yaml',
    importstr 'alerts/rules/pcie.yaml',
    importstr 'alerts/rules/probe.yaml',
    importstr 'alerts/rules/rdma.yaml',
    importstr 'alerts/rules/recording.yaml',
  ]
]);
local alerts(group) = std.length([rule for rule in group.rules if 'alert' in rule]) > 0;

{
  prometheusAlerts+:: { groups+: std.filter(alerts, groups) },
  prometheusRules+:: { groups+: [group for group in groups if !alerts(group)] },
  grafanaDashboards+:: {
    'commwatch-fleet.json': import 'grafana/dashboards/commwatch-fleet.json',
    'commwatch-jobs.json': import 'grafana/dashboards/commwatch-jobs.json',
    'commwatch-link.json': import 'grafana/dashboards/commwatch-link.json',
    'commwatch-network.json': import 'grafana/dashboards/commwatch-network.json',
    'commwatch-node.json': import 'grafana/dashboards/commwatch-node.json',
    'commwatch-pairs.json': import 'grafana/dashboards/commwatch-pairs.json',
  },
}
