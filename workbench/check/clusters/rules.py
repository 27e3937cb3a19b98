"""Findings about a container: devices, probes, ports. Start reading at `check_container`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from vllm_facts.history import History
from vllm_facts.model_choice import Choice
from vllm_facts.option_numbers import PARALLEL, number_of
from workbench.check.clusters.container import DEFAULT_PORT, Container, Probe
from workbench.check.clusters.pods import PERIOD_S
from workbench.check.combinations import local_sizes, size_advice, spans_pods
from workbench.check.findings import Finding, Place
from workbench.check.options import ReadOptions
from workbench.check.rules import finding
from workbench.engine.memory import smallest_weights

LOADING_BYTES_PER_S = 1e9
"""Speed at which weights are loaded, from a disk or a network."""
PATHS = frozenset(
    ("/health", "/ping", "/v1/models", "/metrics", "/version", "/load", "/docs", "/openapi.json")
)
"""Paths of GET requests that vLLM answers with status 200."""
SECRETS = re.compile(r"hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16}")
SECRET_OPTIONS = ("api-key", "hf-token")
LINK_ENDINGS = ("_PORT", "_SERVICE_HOST", "_SERVICE_PORT")
"""Kubernetes sets variables with these ends to the address of a service."""


def check_container(
    container: Container, options: ReadOptions, choice: Choice | None, history: History
) -> Iterator[Finding]:
    """Yields the findings about everything besides the command line."""
    yield from _image(container)
    yield from _secrets(container, options)
    yield from _links(container, history)
    if "*" not in options.unknown_options:
        yield from _devices(container, options)
        yield from _shared_memory(container, options)
        yield from _ports(container, options)
    yield from _probes(container, options, choice)


def _image(container: Container) -> Iterator[Finding]:
    image = container.image.partition("@")[0]
    tag = image.rpartition("/")[2].partition(":")[2]
    if not image or "@" in container.image or "$" in image or "{{" in image:
        return
    if tag in ("", "latest", "nightly"):
        message = f"the image {container.image} changes with each release of vLLM"
        place = container.image_place or container.place
        yield finding("K706", place, message, fix="write the tag of a version, such as v0.32.0")


def _secrets(container: Container, options: ReadOptions) -> Iterator[Finding]:
    for name in SECRET_OPTIONS:
        if options.values.get(name):
            place = options.place_of(name, container.place)
            message = f"--{name} shows a secret to all who can read this file"
            yield finding("K707", place, message, fix="use a variable from a Secret")
    for name, value in container.environment.items():
        is_key = name == "VLLM_API_KEY" and value and "$" not in value
        if is_key or (value and SECRETS.fullmatch(value)):
            place = container.places.get(name, container.place)
            message = f"{name} shows a secret to all who can read this file"
            yield finding("K707", place, message, fix="use secretKeyRef, or an env_file")


def _links(container: Container, history: History) -> Iterator[Finding]:
    """Yields services whose address Kubernetes puts into a variable that vLLM reads."""
    if any(not name for name, _ in container.links):
        return
    for name, place in container.links:
        word = name.upper().replace("-", "_").replace(".", "_")
        for ending in LINK_ENDINGS:
            variable = f"{word}{ending}"
            if variable in history.variables and variable not in container.environment:
                message = (
                    f"Kubernetes sets {variable} to the address of the service {name}, and vLLM"
                    " reads this variable"
                )
                fix = "rename the service, or set enableServiceLinks: false"
                yield finding("K705", place, message, fix=fix)


def _devices(container: Container, options: ReadOptions) -> Iterator[Finding]:
    """Yields devices that no process uses; `Checker` yields those that are missing."""
    count = container.device_count
    if count is None or spans_pods(options):
        return
    if not options.unknown_options.isdisjoint(PARALLEL):
        return
    sizes = local_sizes(options)
    used = math.prod(sizes.values())
    if count > used:
        place = container.device_place or container.place
        message = f"{count} devices are reserved, and vLLM uses {used}"
        fix = f"set {container.device_setting(used)}"
        advice = size_advice(sizes, count)
        if advice:
            fix += f", or {advice}"
        yield finding("K701", place, message, fix=fix)


def _shared_memory(container: Container, options: ReadOptions) -> Iterator[Finding]:
    size = number_of(options.values, "tensor-parallel-size") or 1
    if container.has_shared_memory is False and size > 1:
        place = options.place_of("tensor-parallel-size", container.place)
        message = f"{size} processes share /dev/shm, which has 64 MiB by default"
        fix = "mount an emptyDir of medium Memory at /dev/shm, or set shm_size"
        yield finding("K702", place, message, fix=fix)


def _port(options: ReadOptions) -> int | None:
    """Returns the port of vLLM; None for one that is not known."""
    if "port" in options.unknown_options:
        return None
    return number_of(options.values, "port") or DEFAULT_PORT


def _ports(container: Container, options: ReadOptions) -> Iterator[Finding]:
    port = _port(options)
    if port is None or options.values.get("headless") == "true":
        return
    names = {each.name: each.number for each in container.ports if each.name}
    for probe in container.probes:
        number = names.get(probe.port) or (int(probe.port) if probe.port.isdecimal() else port)
        if number != port and number not in container.other_ports:
            yield _other_port(f"the {probe.kind} probe asks", number, port, probe.place)
        elif number == port and _is_missing(probe.path, options):
            message = f"vLLM does not answer GET {probe.path}"
            yield finding("K704", probe.place, message, fix="use /health")
    known = {*container.other_ports, port}
    for service in container.services:  # a further port can be that of a sidecar, or of KV events
        numbers = [names.get(each.name, each.number) for each in service]
        if 0 not in numbers and known.isdisjoint(numbers):
            yield _other_port("requests go to", numbers[0], port, service[0].place)


def _is_missing(path: str, options: ReadOptions) -> bool:
    return bool(path) and path.partition("?")[0] not in PATHS and "root-path" not in options.values


def _other_port(start: str, number: int, port: int, place: Place) -> Finding:
    message = f"{start} port {number}, and vLLM listens at port {port}"
    return finding("K704", place, message, fix=f"use port {port}, or add --port {number}")


def _probes(container: Container, options: ReadOptions, choice: Choice | None) -> Iterator[Finding]:
    """Yields the probe that stops a container before it can have loaded the weights."""
    probe = _stopping(container)
    size = smallest_weights(options.values, options.version, choice)
    if probe is None or not size:
        return
    needed = size / LOADING_BYTES_PER_S
    if probe.seconds < needed:
        message = (
            f"the {probe.kind} probe gives up after {probe.seconds:.0f} s; weights of"
            f" {size / 1e9:.0f} GB take {needed:.0f} s at 1 GB/s"
        )
        failures = math.ceil(2 * needed / PERIOD_S)
        fix = (
            f"add a startupProbe with periodSeconds: {PERIOD_S} and failureThreshold: {failures}"
            if probe.kind != "health"
            else f"set start_period: {2 * needed:.0f}s"
        )
        yield finding("K703", probe.place, message, fix=fix)


def _stopping(container: Container) -> Probe | None:
    for kind in ("startup", "liveness", "health"):
        for probe in container.probes:
            if probe.kind == kind:
                return probe
    return None
