"""docker-compose.yml: valid, careful, and true outside of containers, too."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import requests
import yaml

from tests.running_server import ROOT, running_gunicorn

COMPOSE = ROOT / "docker-compose.yml"
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == "understudy"]


def test_it_fits_the_compose_specification() -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(COMPOSE),
    ]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_health_checked_and_nobody_is_root(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]
    assert int(SERVICES[name]["user"].partition(":")[0]) > 0


@pytest.mark.parametrize("name", OURS)
def test_a_server_starts_with_its_command_and_environment_outside_of_a_container(name: str) -> None:
    service = SERVICES[name]
    assert service["command"] == ["gunicorn", "wsgi:app"]
    settings = {key: value for key, value in service["environment"].items() if key != "SIM_PORT"}
    ranks = int(settings.get("SIM_DATA_PARALLEL_SIZE", "1"))
    with running_gunicorn(env=settings, ports=ranks) as server:
        for rank in range(ranks):
            url = f"http://127.0.0.1:{server.port + rank}"
            if settings.get("SIM_ROLE") == "indexer":
                assert requests.get(f"{url}/kv/index", timeout=20).json()["pods"] == []
                continue
            models = requests.get(f"{url}/v1/models", timeout=20).json()
            assert models["data"][0]["id"] == settings["SIM_MODEL"]


@pytest.mark.parametrize("name", OURS)
def test_the_published_ports_are_those_that_are_served(name: str) -> None:
    service = SERVICES[name]
    first = int(service["environment"]["SIM_PORT"])
    last = first + int(service["environment"].get("SIM_DATA_PARALLEL_SIZE", "1")) - 1
    ports = str(first) if first == last else f"{first}-{last}"
    assert service["ports"] == [f"{ports}:{ports}"]
    assert all(str(port) in service["healthcheck"]["test"][-1] for port in range(first, last + 1))


def test_prometheus_scrapes_every_server_and_has_rules() -> None:
    config = yaml.safe_load((ROOT / "monitoring" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    targets = {target.partition(":")[0] for group in job["static_configs"] for target in group["targets"]}
    assert targets == set(OURS)
    (group,) = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text())["groups"]
    assert all(rule["expr"] and rule["annotations"]["summary"] for rule in group["rules"])
