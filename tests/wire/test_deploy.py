"""The manifests of deploy/kubernetes, and those of the chart:

as Kubernetes reads them, careful, and true.
"""

from pathlib import Path

import pytest
import requests

from tests.running_server import free_port, running_gunicorn, running_image
from tests.test_deploy import OBJECTS, container, ports


@pytest.mark.parametrize("name", ["understudy", "understudy-indexer", "release"])
def test_a_server_starts_as_described_and_answers_its_probes(name: str, tmp_path: Path) -> None:
    only = container(name)
    fields = {"metadata.name": "pod-1", "metadata.namespace": "ns", "status.podIP": "127.0.0.1"}
    given = {
        each["name"]: each["value"]
        if "value" in each
        else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in only["env"]
    }
    words = only.get("args", [])
    told = (
        given.pop("SIM_PORT", None)
        or next(w for w in words if w.startswith("--port=")).partition("=")[2]
    )
    assert int(told) == ports(name)["http"]
    given |= {
        k: v.replace("understudy-indexer", "127.0.0.1") for k, v in given.items() if "ENDPOINT" in k
    }
    if "SIM_KV_INDEX_BIND" in given:
        assert given["SIM_KV_INDEX_BIND"] == f"tcp://*:{ports(name)['events']}"
        given["SIM_KV_INDEX_BIND"] = f"tcp://127.0.0.1:{free_port()}"
    if "SIM_CONFIG" in given:
        [told_by] = [each for each in OBJECTS if each["kind"] == "ConfigMap"]
        given["SIM_CONFIG"] = str(tmp_path / "settings.yaml")
        Path(given["SIM_CONFIG"]).write_text(told_by["data"]["settings.yaml"])
    with running_image(*words, env=given) if words else running_gunicorn(env=given) as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert only[probe]["httpGet"]["port"] == "http"
            path = only[probe]["httpGet"]["path"]
            assert requests.get(server.url + path, timeout=20).status_code == 200
        assert requests.get(f"{server.url}/metrics", timeout=20).status_code == 200
        assert "not a setting" not in server.log() and "ignored" not in server.log()
