"""Containers of Compose files. Start reading at `services_of`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from workbench.check.clusters.compose_words import compose_words, filled
from workbench.check.clusters.container import Container, Port, Probe, is_of_vllm
from workbench.check.clusters.pods import SHARED_MEMORY
from workbench.check.documents import Value
from workbench.check.findings import Place

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|us)")
SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_URL_PORT = re.compile(r"https?://(?:localhost|127\.0\.0\.1|0\.0\.0\.0):(\d+)(/[\w./-]*)?")
INTERVAL_S = 30.0
RETRIES = 3
"""Docker's defaults of a check of health."""
ALL_DEVICES = "all"


def services_of(document: Value) -> Iterator[Container]:
    """Yields the services that run vLLM."""
    for _, service in document["services"].items():
        container = _read_service(service)
        if container is not None:
            yield container


def _read_service(service: Value) -> Container | None:
    entry, entry_findings = compose_words(service["entrypoint"])
    command, command_findings = compose_words(service["command"])
    image = filled(service["image"].text)
    if not is_of_vllm(image, [word.text for word in (*entry, *command)]):
        return None
    container = Container(
        (service["command"] or service["entrypoint"] or service).place,
        image=image,
        image_place=service["image"].place,
        words=[*entry, *command],
        has_command=bool(entry),
        has_shared_memory=_has_shared_memory(service),
        findings=[*entry_findings, *command_findings],
    )
    _read_variables(container, service["environment"])
    _read_devices(container, service)
    container.ports = [port for port in map(_container_port, service["ports"]) if port]
    container.services = [container.ports] if container.ports else []
    probe = _probe_of(service["healthcheck"])
    if probe is not None:
        container.probes.append(probe)
    return container


def _read_variables(container: Container, variables: Value) -> None:
    """Reads a mapping, or a list of NAME=VALUE; a name alone has the value of the host."""
    for key, value in variables.items():
        _set_variable(container, key.text, value.text if value else None, key.place)
    for element in variables:
        name, equals, text = element.text.partition("=")
        _set_variable(container, name, text if equals else None, element.place)


def _set_variable(container: Container, name: str, text: str | None, place: Place) -> None:
    value = None if text is None else filled(text)
    if value is not None and "$" in value.replace("$$", ""):
        value = None
    container.environment[name] = value
    container.places[name] = place


def _read_devices(container: Container, service: Value) -> None:
    reservations = service["deploy"]["resources"]["reservations"]["devices"]
    for source in (reservations, service["gpus"]):
        for device in source:
            identifiers = list(device["device_ids"])
            container.device_place = device.place
            container.device_key = "count"
            if identifiers:
                container.device_count = len(identifiers)
            else:
                container.device_count = device["count"].number


def _has_shared_memory(service: Value) -> bool:
    if service["shm_size"] or service["ipc"].text not in ("", "private"):
        return True
    mounts = [*service["volumes"], *service["tmpfs"], service["tmpfs"]]
    return any(
        SHARED_MEMORY in each.text or each["target"].text == SHARED_MEMORY for each in mounts
    )


def _container_port(value: Value) -> Port | None:
    """Returns the port of the container in `8080:8000`; None for a range or a variable."""
    if value.is_mapping:
        number = value["target"].number
        return Port(number, "", value.place) if number is not None else None
    text = filled(value.text).partition("/")[0].rpartition(":")[2]
    return Port(int(text), "", value.place) if text.isdecimal() and len(text) < 6 else None


def _probe_of(check: Value) -> Probe | None:
    test = check["test"]
    text = " ".join(each.text for each in test) if test.is_list else test.text
    if not text or check["disable"].is_true:
        return None
    match = _URL_PORT.search(filled(text))
    times: Mapping[str, float] = {
        key: _seconds(check[key].text) for key in ("interval", "start_period")
    }
    retries = check["retries"].number or RETRIES
    seconds = times["start_period"] + (times["interval"] or INTERVAL_S) * retries
    port, path = (match[1], match[2] or "") if match else ("", "")
    return Probe("health", port, path, seconds, test.place)


def _seconds(text: str) -> float:
    """Returns the seconds of a duration such as 1m30s; 0 for another text."""
    return sum(float(number) * SECONDS[unit] for number, unit in _DURATION.findall(text))
