"""docs/using/alerting.md: the rule and the queries that give series of a GPU its UUID and join dcgm-exporter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from commwatch.config.assets import asset
from commwatch_exporters.catalogue import CATALOGUE
from support.promtool_cases import promtool

pytestmark = pytest.mark.prometheus

SECTION = (
    (asset("alerts").parent / "docs/using/alerting.md").read_text(encoding="utf-8")
    .partition("## UUIDs, and the series of dcgm-exporter\n")[2].partition("\n## ")[0]
)  # fmt: skip
RULE, _ = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
OF_UUID, WITH_DCGM, _ = re.findall(r"```promql\n(.*?)```", SECTION, re.DOTALL)

UUID = "GPU-6f2c1b7e-93d4-5a0f-8c61-2e7b90d4f318"
OURS = 'job="commwatch", instance="node1:28029", gpu="0", pci_bus_id="0000:17:00.0"'
DCGM = {
    "4.8.2": f'DCGM_FI_DEV_GPU_TEMP{{gpu="0", UUID="{UUID}", pci_bus_id="00000000:17:00.0", device="nvidia0",'
             ' modelName="NVIDIA H100", Hostname="node1", DCGM_FI_DRIVER_VERSION="580.95.05"}',
    "4.8.4": f'DCGM_FI_DEV_GPU_TEMP{{gpu="0", UUID="{UUID}", pci_bus_id="00000000:17:00.0", device="nvidia0",'
             ' modelName="NVIDIA H100", hostname="node1", DCGM_FI_DRIVER_VERSION="580.95.05"}',
    "4.9.0": f'DCGM_FI_DEV_GPU_TEMP_CELSIUS{{gpu="0", UUID="{UUID}", pci_bus_id="00000000:17:00.0", device="nvidia0",'
             ' modelName="NVIDIA H100", hostname="node1", DCGM_FI_SYSTEM_DRIVER_VERSION="580.95.05"}',
}  # fmt: skip
"""Names and labels by version of dcgm-exporter, from its template and release notes."""


@pytest.mark.parametrize("version", DCGM)
def test_a_link_that_is_down_has_uuid_model_and_temperature(version: str, tmp_path: Path) -> None:
    """The documented queries give the link that is down, with the UUID, and with what dcgm-exporter says of its GPU."""
    (tmp_path / "rule.yaml").write_text(RULE, encoding="utf-8")
    series = {
        f'commwatch_gpu_info{{{OURS}, uuid="{UUID}", serial="1", name="H100", architecture="Hopper"}}': 1,
        f'commwatch_nvlink_link_state{{{OURS}, link="5"}}': 0,
        f'commwatch_nvlink_link_state{{{OURS}, link="6"}}': 1,
        DCGM[version]: 61,
    }
    case = {
        "rule_files": ["rule.yaml"],
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": name, "values": f"{value} {value} {value}"} for name, value in series.items()],
            "promql_expr_test": [
                _expects(OF_UUID, f'{{{OURS}, link="5", UUID="{UUID}"}}', 0),
                _expects(WITH_DCGM, f'{{{OURS}, link="5", UUID="{UUID}", modelName="NVIDIA H100"}}', 61),
            ],
        }],
    }  # fmt: skip
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case), encoding="utf-8")

    done = promtool("test", "rules", tmp_path / "case.yaml")

    assert done.returncode == 0, done.stdout


def _expects(query: str, labels: str, value: float) -> dict[str, object]:
    return {"expr": query, "eval_time": "2m", "exp_samples": [{"labels": labels, "value": value}]}


def test_every_series_of_a_gpu_can_be_joined() -> None:
    """Each metric with the index of a GPU has its slot too, so that the documented rule reaches it."""
    assert [one.name for one in CATALOGUE.values() if "gpu" in one.labels and "pci_bus_id" not in one.labels] == []
