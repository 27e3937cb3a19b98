"""The manifests of deploy/kubernetes, and those of the chart:

as Kubernetes reads them, careful, and true.
"""

from pathlib import Path

import pytest
import requests

from tests.running_server import free_port, running_gunicorn, running_image
from tests.test_deploy import OBJECTS, container, ports


@pytest.mark.parametrize("name", ["understudy", "understudy-indexer", "release"])
def test_server_started_from_a_manifest_answers_the_probes(name: str, tmp_path: Path) -> None:
    only = container(name)
    fields = {"metadata.name": "pod-1", "metadata.namespace": "ns", "status.podIP": "127.0.0.1"}
    variables = {
        variable["name"]: variable["value"]
        if "value" in variable
        else fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in only["env"]
    }
    words = only.get("args", [])
    port_text = (
        variables.pop("SIM_PORT", None)
        or next(w for w in words if w.startswith("--port=")).partition("=")[2]
    )
    assert int(port_text) == ports(name)["http"]
    variables |= {
        k: v.replace("understudy-indexer", "127.0.0.1")
        for k, v in variables.items()
        if "ENDPOINT" in k
    }
    if "SIM_KV_INDEX_BIND" in variables:
        assert variables["SIM_KV_INDEX_BIND"] == f"tcp://*:{ports(name)['events']}"
        variables["SIM_KV_INDEX_BIND"] = f"tcp://127.0.0.1:{free_port()}"
    if "SIM_CONFIG" in variables:
        [told_by] = [variable for variable in OBJECTS if variable["kind"] == "ConfigMap"]
        variables["SIM_CONFIG"] = str(tmp_path / "settings.yaml")
        Path(variables["SIM_CONFIG"]).write_text(told_by["data"]["settings.yaml"])
    with (
        running_image(*words, env=variables) if words else running_gunicorn(env=variables) as server
    ):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert only[probe]["httpGet"]["port"] == "http"
            path = only[probe]["httpGet"]["path"]
            assert requests.get(server.url + path, timeout=20).status_code == 200
        assert requests.get(f"{server.url}/metrics", timeout=20).status_code == 200
        assert "not a setting" not in server.log() and "ignored" not in server.log()
