"""The manifests of deploy/kubernetes, and those of the chart:

as Kubernetes reads them, careful, and true.
"""

import re
import warnings
from typing import Any

import pytest
import yaml

from app.extensions.lab.load.autoscale_flags import read_policy
from app.extensions.lab.load.hpa import HorizontalPodAutoscaler
from config import VERSION
from config.loader import load
from config.settings import BY_NAME
from tests import helm_chart
from tests.running_server import ROOT

VARIABLES = {f"SIM_{name.upper().replace('-', '_')}" for name in BY_NAME}
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
FILES = [FOLDER / name for name in KUSTOMIZATION["resources"]]
OBJECTS: list[dict[str, Any]] = [
    each for file in FILES for each in yaml.safe_load_all(file.read_text())
]
OBJECTS += helm_chart.objects()
DEPLOYMENTS = {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == "Deployment"}
SERVICES = {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == "Service"}
MONITOR = yaml.safe_load((FOLDER / "pod-monitor.yaml").read_text())


def pod(name: str) -> dict[str, Any]:
    template: dict[str, Any] = DEPLOYMENTS[name]["spec"]["template"]
    return template


def container(name: str) -> dict[str, Any]:
    [only] = pod(name)["spec"]["containers"]
    return dict(only)


def ports(name: str) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(name)["ports"]}


@pytest.mark.parametrize(
    "described", OBJECTS, ids=lambda it: f"{it['kind']}-{it['metadata']['name']}"
)
def test_it_fits_the_schemas_of_kubernetes(described: dict[str, Any]) -> None:
    check_schema(described)


def check_schema(described: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kubernetes_validate
    kubernetes_validate.validate(described, kubernetes_validate.latest_version(), strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            described | {"spek": {}}, kubernetes_validate.latest_version(), True
        )


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_server_takes_its_settings(name: str) -> None:
    """Three of them start in tests/wire/test_deploy.py."""
    given = {each["name"]: each.get("value", "10.0.0.1") for each in container(name)["env"]}
    assert {key for key in given if key.startswith("SIM_")} <= {*VARIABLES, "SIM_CONFIG"}
    given.pop("SIM_CONFIG", None)
    load((), given)


def test_every_file_is_listed() -> None:
    listed = {*KUSTOMIZATION["resources"], "kustomization.yaml", "pod-monitor.yaml"}
    assert {file.name for file in FOLDER.iterdir()} == listed
    assert set(DEPLOYMENTS) == set(SERVICES) and len(DEPLOYMENTS) == 6 + 1


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_nobody_is_root_or_may_write(name: str) -> None:
    spec, only = pod(name)["spec"], container(name)
    security = spec["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] > 0 and security["runAsGroup"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    own = only["securityContext"]
    assert own["readOnlyRootFilesystem"] and own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    writable = [mount for mount in only["volumeMounts"] if not mount.get("readOnly")]
    assert writable == [{"name": "tmp", "mountPath": "/tmp"}]
    assert only["resources"]["limits"]["memory"] and only["resources"]["requests"]["cpu"]
    assert spec["terminationGracePeriodSeconds"] > 30  # graceful-timeout


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_service_and_the_monitor_find_its_pods(name: str) -> None:
    deployment, service = DEPLOYMENTS[name]["spec"], SERVICES[name]["spec"]
    labels = pod(name)["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels == service["selector"]
    others = [pod(other)["metadata"]["labels"] for other in DEPLOYMENTS if other != name]
    assert labels not in others
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports(name)
    monitor = MONITOR["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert set(monitor["podTargetLabels"]) <= set(labels)
    [endpoint] = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in ports(name) and endpoint["path"] == "/metrics"


def test_the_autoscaler_is_the_policy_that_the_comment_simulates() -> None:
    text = (FOLDER / "autoscaled.yaml").read_text()
    found = re.search(r"--autoscale (\S+) --cold-start (\S+)\n", text)
    assert found is not None
    policy = read_policy(found[1], {})
    assert isinstance(policy, HorizontalPodAutoscaler)
    [spec] = [each["spec"] for each in OBJECTS if each["kind"] == "HorizontalPodAutoscaler"]
    assert spec["scaleTargetRef"]["name"] in DEPLOYMENTS
    assert (spec["minReplicas"], spec["maxReplicas"]) == (policy.min_pods, policy.max_pods)
    [pods] = [metric["pods"] for metric in spec["metrics"]]
    assert pods["metric"]["name"] == f"vllm_num_requests_{policy.metric}"
    assert float(pods["target"]["averageValue"]) == policy.target
    windows = policy.window_up, policy.window_down
    ways = zip(("scaleUp", "scaleDown"), (policy.up, policy.down), windows, strict=True)
    for name, rates, window_s in ways:
        behavior = spec["behavior"][name]
        assert (
            behavior["stabilizationWindowSeconds"] == window_s and behavior["selectPolicy"] == "Max"
        )
        given = [
            (it["value"], it["type"] == "Percent", it["periodSeconds"])
            for it in behavior["policies"]
        ]
        assert given == list(rates)
    given = {each["name"]: each.get("value") for each in container("understudy-autoscaled")["env"]}
    assert given["SIM_STARTUP_DURATION"] == found[2]
    assert "replicas" not in DEPLOYMENTS["understudy-autoscaled"]["spec"]


def test_the_chart_autoscales_when_it_is_told_to() -> None:
    values = yaml.safe_load((helm_chart.CHART / "values.yaml").read_text())
    assert "kind: HorizontalPodAutoscaler" in (
        text := (helm_chart.CHART / "templates" / "autoscaler.yaml").read_text()
    )
    assert not helm_chart.rendered(text, values).strip()
    [spec] = [each["spec"] for each in OBJECTS if each["kind"] == "HorizontalPodAutoscaler"]
    own = {key: spec[key] for key in spec if key != "scaleTargetRef"}
    made = yaml.safe_load(helm_chart.rendered(text, values | {"autoscaling": own}))
    assert made["spec"].pop("scaleTargetRef")["name"] == helm_chart.RELEASE and made["spec"] == own
    check_schema(made | {"spec": spec})


def test_the_chart_takes_other_values() -> None:
    values = yaml.safe_load((helm_chart.CHART / "values.yaml").read_text())
    secret = {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}}
    values |= {"port": 9000, "env": [secret], "settings": {"model": "m"}}
    made = {}
    for file in helm_chart.CHART.glob("templates/*.yaml"):
        made[file.stem] = yaml.safe_load(helm_chart.rendered(file.read_text(), values))
    [only] = made["deployment"]["spec"]["template"]["spec"]["containers"]
    assert only["env"][-1] == secret and only["ports"] == [{"name": "http", "containerPort": 9000}]
    assert made["service"]["spec"]["ports"][0]["port"] == 9000
    assert yaml.safe_load(made["configmap"]["data"]["settings.yaml"]) == {"model": "m"}


def test_every_setting_of_the_chart_is_one() -> None:
    values = yaml.safe_load((helm_chart.CHART / "values.yaml").read_text())
    assert set(values["settings"]) <= set(BY_NAME)
    chart = yaml.safe_load((helm_chart.CHART / "Chart.yaml").read_text())
    assert chart["apiVersion"] == "v2" and chart["appVersion"] == values["image"]["tag"] == VERSION
