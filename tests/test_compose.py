"""The compose files: valid, careful, and true outside of containers, too."""

import re
from typing import Any

import pytest

from app.core.settings import load
from scripts.surface import stored_settings
from tests import yaml_text
from tests.running_server import ROOT

COMPOSE = ROOT / "docker-compose.yml"
SERVICES: dict[str, Any] = yaml_text.document(COMPOSE.read_text())["services"]
OUR_FILES = (
    "docker-compose.yml",
    "deploy/routers/docker-compose.yml",
    "examples/project/understudy/compose.yaml",
)
PUBLISH_VARIABLE = "PUBLISH_ADDRESS"
ADDRESS = f"${{{PUBLISH_VARIABLE}:-127.0.0.1}}"
"""Address that ports are published on, unless the user sets the variable."""
OURS = [name for name, service in SERVICES.items() if service["image"] == "understudy"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_health_check_and_runs_as_a_non_root_user(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]
    assert int(SERVICES[name]["user"].partition(":")[0]) > 0


@pytest.mark.parametrize("file", OUR_FILES)
def test_each_understudy_service_has_a_memory_limit(file: str) -> None:
    services = yaml_text.document((ROOT / file).read_text())["services"]
    ours = [service for service in services.values() if "understudy" in service["image"]]
    chart = yaml_text.document((ROOT / "deploy/helm/values.yaml").read_text())
    assert chart["resources"]["limits"]["memory"] == "1Gi"
    assert ours
    for service in ours:
        assert service["mem_limit"] == ("4g" if "llm" in service["image"] else "1g")


@pytest.mark.parametrize("name", OURS)
def test_compose_file_publishes_exactly_the_ports_of_its_services(
    name: str,
) -> None:
    service = SERVICES[name]
    first = int(service["environment"]["SIM_PORT"])
    last = first + int(service["environment"].get("SIM_DATA_PARALLEL_SIZE", "1")) - 1
    ports = str(first) if first == last else f"{first}-{last}"
    assert service["ports"] == [f"{ADDRESS}:{ports}:{ports}"]
    assert all(str(port) in service["healthcheck"]["test"][-1] for port in range(first, last + 1))


@pytest.mark.parametrize("name", OURS)
def test_service_runs_gunicorn_and_its_environment_has_valid_settings(name: str) -> None:
    service = SERVICES[name]
    assert service["command"] == ["gunicorn", "wsgi:app"]
    settings = load((), service["environment"])
    variables = {f"SIM_{name.upper().replace('-', '_')}" for name in stored_settings()}
    assert set(service["environment"]) <= variables
    assert settings.server.port == int(service["environment"]["SIM_PORT"])


def test_published_ports_are_unique_and_documented() -> None:
    published = {name: service["ports"][0].split(":")[-1] for name, service in SERVICES.items()}
    ends = [list(map(int, ports.split("-"))) for ports in published.values()]
    ports = [port for end in ends for port in range(end[0], end[-1] + 1)]
    assert len({*ports}) == len(ports)
    compose = (
        (ROOT / "docs" / "deployment.md")
        .read_text()
        .partition("## Compose")[2]
        .partition("\n## ")[0]
    )
    assert dict(re.findall(r"(?m)^\| `([\w-]+)` \| ([\d-]+) \|", compose)) == published


@pytest.mark.parametrize("file", OUR_FILES)
def test_compose_file_publishes_ports_on_the_loopback_address_by_default(file: str) -> None:
    services = yaml_text.document((ROOT / file).read_text())["services"]
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert published
    for port in published:
        assert port.startswith(f"{ADDRESS}:"), port
        assert PUBLISH_VARIABLE in (ROOT / file).read_text().partition("\nservices:")[0]


def test_prometheus_scrapes_every_server_and_has_alert_rules() -> None:
    config = yaml_text.document((ROOT / "deploy" / "monitoring" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    targets = {
        target.partition(":")[0] for group in job["static_configs"] for target in group["targets"]
    }
    assert targets == set(OURS)
    (group,) = yaml_text.document((ROOT / "deploy" / "monitoring" / "alerts.yml").read_text())[
        "groups"
    ]
    assert all(rule["expr"] and rule["annotations"]["summary"] for rule in group["rules"])
