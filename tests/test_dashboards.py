"""Dashboards and alerts, asked of a real Prometheus that scrapes real servers."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.running_server import ROOT

MONITORING = ROOT / "deploy" / "monitoring"
GRAFANA = MONITORING / "grafana"
DASHBOARDS = {
    file.stem: json.loads(file.read_text()) for file in (GRAFANA / "dashboards").glob("*.json")
}
QUERIES = [
    pytest.param(target["expr"], id=f"{name}-{panel['title']}-{target['refId']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    for target in panel["targets"]
]


def test_grafana_provisioning_refers_to_existing_dashboards() -> None:
    provisioning = GRAFANA / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())[
        "datasources"
    ]
    [provider] = yaml.safe_load((provisioning / "dashboards" / "files.yml").read_text())[
        "providers"
    ]
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]
    mounted = {entry.split(":")[1]: entry.split(":")[0] for entry in service["volumes"]}
    assert (ROOT / mounted["/etc/grafana/provisioning"]).is_dir()
    assert (ROOT / mounted[provider["options"]["path"]]) == GRAFANA / "dashboards"
    home = Path(service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.stem in DASHBOARDS and str(home.parent) in mounted
    assert source["url"] == "http://prometheus:9090"
    for name, dashboard in DASHBOARDS.items():
        assert dashboard["uid"] == name
        assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
        places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
        assert len(set(places)) == len(places) and len(
            {panel["id"] for panel in dashboard["panels"]}
        ) == len(places)


def test_no_dashboard_panel_depends_on_a_job_name() -> None:
    for parameter in QUERIES:
        [query] = parameter.values
        assert re.findall(r"job\s*=~?\s*\"([^\"]*)", str(query)) in ([], ["$job"])
