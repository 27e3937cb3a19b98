"""The manifests of deploy/kubernetes, and those of the chart:

as Kubernetes reads them, careful, and true.
"""

import re
import shlex
import warnings
from itertools import pairwise
from typing import Any

import pytest

from app.core.settings import load
from config import VERSION
from scripts.surface import stored_settings
from tests import helm_chart, yaml_text
from tests.running_server import ROOT

VARIABLES = {f"SIM_{name.upper().replace('-', '_')}" for name in stored_settings()}
FOLDER = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION = yaml_text.document((FOLDER / "kustomization.yaml").read_text())
FILES = [FOLDER / name for name in KUSTOMIZATION["resources"]]
OBJECTS: list[dict[str, Any]] = [
    document for file in FILES for document in yaml_text.documents(file.read_text())
]
OBJECTS += helm_chart.objects()
DEPLOYMENTS = {
    document["metadata"]["name"]: document
    for document in OBJECTS
    if document["kind"] == "Deployment"
}
SERVICES = {
    document["metadata"]["name"]: document for document in OBJECTS if document["kind"] == "Service"
}
MONITOR = yaml_text.document((FOLDER / "pod-monitor.yaml").read_text())


def pod(name: str) -> dict[str, Any]:
    template: dict[str, Any] = DEPLOYMENTS[name]["spec"]["template"]
    return template


def container(name: str) -> dict[str, Any]:
    [only] = pod(name)["spec"]["containers"]
    return dict(only)


def ports(name: str) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(name)["ports"]}


@pytest.mark.parametrize(
    "described", OBJECTS, ids=lambda document: f"{document['kind']}-{document['metadata']['name']}"
)
def test_every_manifest_satisfies_the_kubernetes_schemas(described: dict[str, Any]) -> None:
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
def test_deployment_environment_contains_valid_settings(name: str) -> None:
    """Three of them start in tests/wire/test_deploy.py."""
    variables = {
        variable["name"]: variable.get("value", "10.0.0.1") for variable in container(name)["env"]
    }
    assert {key for key in variables if key.startswith("SIM_")} <= {*VARIABLES, "SIM_CONFIG"}
    variables.pop("SIM_CONFIG", None)
    load((), variables)


def test_every_manifest_file_is_listed_in_the_kustomization() -> None:
    listed = {*KUSTOMIZATION["resources"], "kustomization.yaml", "pod-monitor.yaml"}
    assert {file.name for file in FOLDER.iterdir()} == listed
    assert set(DEPLOYMENTS) == set(SERVICES) and len(DEPLOYMENTS) == 6 + 1


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_containers_are_unprivileged_and_read_only(name: str) -> None:
    spec = pod(name)["spec"]
    only = container(name)
    security = spec["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] > 0 and security["runAsGroup"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    container_security = only["securityContext"]
    assert (
        container_security["readOnlyRootFilesystem"]
        and container_security["allowPrivilegeEscalation"] is False
    )
    assert container_security["capabilities"] == {"drop": ["ALL"]}
    writable = [mount for mount in only["volumeMounts"] if not mount.get("readOnly")]
    assert writable == [{"name": "tmp", "mountPath": "/tmp"}]
    assert only["resources"]["limits"]["memory"] and only["resources"]["requests"]["cpu"]
    assert spec["terminationGracePeriodSeconds"] > 30  # graceful-timeout


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_service_and_pod_monitor_select_their_pods(name: str) -> None:
    deployment = DEPLOYMENTS[name]["spec"]
    service = SERVICES[name]["spec"]
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


def test_chart_enables_autoscaling_on_request() -> None:
    values = yaml_text.document((helm_chart.CHART / "values.yaml").read_text())
    assert "kind: HorizontalPodAutoscaler" in (
        text := (helm_chart.CHART / "templates" / "autoscaler.yaml").read_text()
    )
    assert not helm_chart.rendered(text, values).strip()
    [spec] = [
        document["spec"] for document in OBJECTS if document["kind"] == "HorizontalPodAutoscaler"
    ]
    autoscaling = {key: spec[key] for key in spec if key != "scaleTargetRef"}
    rendered_autoscaler = yaml_text.document(
        helm_chart.rendered(text, values | {"autoscaling": autoscaling})
    )
    assert (
        rendered_autoscaler["spec"].pop("scaleTargetRef")["name"] == helm_chart.RELEASE
        and rendered_autoscaler["spec"] == autoscaling
    )
    check_schema(rendered_autoscaler | {"spec": spec})


def test_helm_chart_applies_changed_values() -> None:
    values = yaml_text.document((helm_chart.CHART / "values.yaml").read_text())
    secret = {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}}
    values |= {"port": 9000, "env": [secret], "settings": {"model": "m"}}
    rendered_objects = {}
    for file in helm_chart.CHART.glob("templates/*.yaml"):
        rendered_objects[file.stem] = yaml_text.document(
            helm_chart.rendered(file.read_text(), values)
        )
    [only] = rendered_objects["deployment"]["spec"]["template"]["spec"]["containers"]
    assert only["env"][-1] == secret and only["ports"] == [{"name": "http", "containerPort": 9000}]
    assert rendered_objects["service"]["spec"]["ports"][0]["port"] == 9000
    assert yaml_text.document(rendered_objects["configmap"]["data"]["settings.yaml"]) == {
        "model": "m"
    }


def test_documented_helm_command_starts_replicas_that_become_ready_after_a_minute() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    [command] = re.findall(r"^\$ (helm install (?:.*\\\n)*.*)", page, re.MULTILINE)
    words = shlex.split(command.replace("\\\n", ""))
    values = yaml_text.document((helm_chart.CHART / "values.yaml").read_text())
    for option, assignment in pairwise(words):
        if option == "--set":
            path, _, text = assignment.partition("=")
            *parents, key = path.split(".")
            scope = values
            for parent in parents:
                scope = scope[parent]
            assert key in scope or key in stored_settings()
            scope[key] = yaml_text.document(text)
    templates = helm_chart.CHART / "templates"
    text = helm_chart.rendered((templates / "deployment.yaml").read_text(), values)
    spec = yaml_text.document(text)["spec"]
    assert spec["replicas"] == 3
    [only] = spec["template"]["spec"]["containers"]
    assert only["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    settings = load((), {"SIM_STARTUP_DURATION": values["settings"]["startup-duration"]})
    assert settings.server.startup_duration == 60


def test_every_chart_setting_is_a_server_setting() -> None:
    values = yaml_text.document((helm_chart.CHART / "values.yaml").read_text())
    assert set(values["settings"]) <= stored_settings()
    chart = yaml_text.document((helm_chart.CHART / "Chart.yaml").read_text())
    assert chart["apiVersion"] == "v2" and chart["appVersion"] == values["image"]["tag"] == VERSION
