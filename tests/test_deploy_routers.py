"""The manifests of deploy/routers: as Kubernetes reads them, and careful."""

import tomllib
from typing import Any

import pytest

from tests import yaml_text
from tests.running_server import ROOT
from tests.test_deploy import check_schema

FOLDER = ROOT / "deploy" / "routers"
OBJECTS: list[dict[str, Any]] = []
for file in sorted(FOLDER.glob("*.yaml")):
    OBJECTS += yaml_text.documents(file.read_text())
DEPLOYMENTS = [document for document in OBJECTS if document["kind"] == "Deployment"]
SERVICES = {
    document["metadata"]["name"]: document["spec"]
    for document in OBJECTS
    if document["kind"] == "Service"
}
COMPOSE: dict[str, Any] = yaml_text.document((FOLDER / "docker-compose.yml").read_text())[
    "services"
]


def name_of(described: dict[str, Any]) -> str:
    return f"{described['kind']}-{described['metadata']['name']}"


@pytest.mark.parametrize("described", OBJECTS, ids=name_of)
def test_router_manifest_satisfies_the_kubernetes_schemas(described: dict[str, Any]) -> None:
    check_schema(described)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=name_of)
def test_router_pod_is_unprivileged_and_has_a_service(deployment: dict[str, Any]) -> None:
    pod = deployment["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and security["capabilities"] == {"drop": ["ALL"]}
    service = SERVICES[deployment["metadata"]["name"]]
    assert service["selector"] == pod["metadata"]["labels"]
    assert [port["port"] for port in service["ports"]] == [container["ports"][0]["containerPort"]]


def test_router_deployments_refer_to_existing_services_and_ports() -> None:
    for deployment in DEPLOYMENTS:
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        for word in container["args"]:
            if str(word).startswith("http://"):
                host, _, port = word.removeprefix("http://").partition(":")
                assert SERVICES[host]["ports"][0]["port"] == int(port)


@pytest.mark.parametrize("name", COMPOSE)
def test_router_compose_service_has_a_health_check_and_runs_unprivileged(name: str) -> None:
    assert COMPOSE[name]["healthcheck"]["test"] and COMPOSE[name]["user"] == "10001:10001"
    assert COMPOSE[name]["read_only"] and COMPOSE[name]["cap_drop"] == ["ALL"]


def test_router_image_has_the_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [pinned] = [
        line for line in project["dependency-groups"]["servers"] if line.startswith("vllm-router")
    ]
    assert f"install --no-cache-dir {pinned}\n" in (FOLDER / "Dockerfile").read_text()
    image = f"image: {pinned.replace('==', ':')}\n"
    for file in FOLDER.glob("*.yaml"):
        assert image in file.read_text()
