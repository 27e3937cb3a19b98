"""Containers of Kubernetes objects: of every kind with a pod, whatever its kind is called.

Start reading at `containers_of`.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.check.clusters.container import (
    Container,
    Mount,
    Port,
    Probe,
    is_of_vllm,
)
from workbench.check.clusters.device_names import (
    LABELS,
    MACHINE_LABELS,
    OTHER_RESOURCE,
    RESOURCE,
    device_of_label,
    device_of_machine,
)
from workbench.check.documents import Value
from workbench.check.sources import Word

PROBES = {"startupProbe": "startup", "livenessProbe": "liveness", "readinessProbe": "readiness"}
SHARED_MEMORY = "/dev/shm"
MAX_CONTAINERS = 50
"""Containers of a pod that are read."""
PERIOD_S = 10
FAILURES = 3
"""Kubernetes' defaults of a probe."""


def containers_of(document: Value, seen: set[int]) -> Iterator[Container]:
    """Yields the containers of vLLM in an object; adds their nodes to `seen`."""
    for value in document.walk():
        if not value["containers"].is_list:
            continue
        elements = [each for each in value["containers"] if each.is_mapping]
        ports = [{port.number for port in ports_of(each)} for each in elements[:MAX_CONTAINERS]]
        for index, element in enumerate(elements[:MAX_CONTAINERS]):
            if id(element.node) in seen:
                continue
            container = read_container(element)
            seen.add(id(element.node))
            if container is None:
                continue
            _read_pod(container, value, element)
            container.other_ports = set().union(*ports[:index], *ports[index + 1 :])
            _read_group(container, document)
            yield container


def read_container(element: Value) -> Container | None:
    """Returns a container; None if it does not run vLLM."""
    command = words_of(element["command"])
    arguments = words_of(element["args"])
    image = image_of(element["image"])
    if not is_of_vllm(image, [word.text for word in (*command, *arguments)]):
        return None
    container = Container(
        (element["command"] or element["args"] or element).place,
        image=image,
        image_place=element["image"].place,
        words=[*command, *arguments],
        has_command=bool(command),
    )
    read_variables(container, element["env"])
    read_resources(container, element["resources"])
    container.ports = list(ports_of(element))
    container.probes = list(_probes_of(element))
    return container


def image_of(image: Value) -> str:
    """Returns an image that is one text, or the repository and the tag of a chart."""
    if not image.is_mapping:
        return image.text
    parts = [image[key].text for key in ("registry", "repository", "name") if image[key].text]
    tag = image["tag"].text
    return "/".join(parts) + (f":{tag}" if tag else "")


def words_of(value: Value) -> list[Word]:
    """Returns the words of a list, or the only word of a text."""
    elements = list(value) if value.is_list else [value] if value else []
    return [element.word() for element in elements if element.text]


def read_variables(container: Container, variables: Value) -> None:
    """Reads a list of names and values, or a mapping."""
    if variables.is_mapping:
        for key, value in variables.items():
            container.environment[key.text] = value.text
            container.places[key.text] = key.place
    for variable in variables:
        name = variable["name"].text
        if name:
            is_here = not variable["valueFrom"]
            container.environment[name] = variable["value"].text if is_here else None
            container.places[name] = variable.place


def read_resources(container: Container, resources: Value) -> None:
    """Reads the number of devices, of the limits or else of the requests."""
    for part in ("limits", "requests"):
        for key, value in resources[part].items():
            if OTHER_RESOURCE.fullmatch(key.text):
                container.device_place = key.place
            if RESOURCE.fullmatch(key.text) and container.device_count is None:
                container.device_count = value.number
                container.device_place = key.place
                container.device_key = key.text


def ports_of(element: Value) -> Iterator[Port]:
    """Yields the ports of a container."""
    for port in element["ports"]:
        number = port["containerPort"].number
        if number is not None:
            yield Port(number, port["name"].text, port["containerPort"].place)


def _probes_of(element: Value) -> Iterator[Probe]:
    for key, kind in PROBES.items():
        probe = element[key]
        if not probe.is_mapping:
            continue
        port = path = ""
        for check in ("httpGet", "tcpSocket", "grpc"):
            port = port or probe[check]["port"].text
            path = path or probe[check]["path"].text
        period = probe["periodSeconds"].number or PERIOD_S
        failures = probe["failureThreshold"].number or FAILURES
        seconds = (probe["initialDelaySeconds"].number or 0) + period * failures
        place = probe["httpGet"]["port"].place if probe["httpGet"]["port"] else probe.place
        yield Probe(kind, port, path, float(seconds), place)


def _read_pod(container: Container, pod: Value, element: Value) -> None:
    container.has_shared_memory = pod["hostIPC"].is_true or _mounts_memory(pod, element)
    container.device = device_of_pod(pod)
    container.mounts = list(_mounts_of(pod, element))
    if pod["enableServiceLinks"].text.lower() == "false":
        container.links.append(("", pod["enableServiceLinks"].place))


def _mounts_of(pod: Value, element: Value) -> Iterator[Mount]:
    """Yields the ConfigMaps whose files are in a container."""
    names = {each["name"].text: each["configMap"]["name"].text for each in pod["volumes"]}
    for mount in element["volumeMounts"]:
        name = names.get(mount["name"].text)
        if name:
            path = mount["mountPath"].text.rstrip("/")
            yield Mount(path, name, mount["subPath"].text)


def _mounts_memory(pod: Value, element: Value) -> bool:
    """Returns whether a volume is mounted at /dev/shm, which is then larger than 64 MiB."""
    return any(
        mount["mountPath"].text.rstrip("/") == SHARED_MEMORY for mount in element["volumeMounts"]
    )


def device_of_pod(pod: Value) -> str:
    """Returns the device that the selectors and affinities of a pod ask for; empty without one.

    A choice between devices is not known.
    """
    found: set[str] = set()
    for key, value in pod["nodeSelector"].items():
        found.add(_device(key.text, value.text))
    node = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in node["nodeSelectorTerms"]:
        for expression in term["matchExpressions"]:
            if expression["operator"].text in ("", "In"):
                for value in expression["values"]:
                    found.add(_device(expression["key"].text, value.text))
    found.discard("")
    return found.pop() if len(found) == 1 else ""


def _device(label: str, value: str) -> str:
    if label in LABELS:
        return device_of_label(value)
    if label in MACHINE_LABELS:
        return device_of_machine(value)
    return ""


def _read_group(container: Container, document: Value) -> None:
    """Counts the devices of all pods of a group that is one server (LeaderWorkerSet)."""
    size = document["spec"]["leaderWorkerTemplate"]["size"].number
    if container.device_count is None:
        return
    if size is not None:
        container.device_count *= max(1, size)
    elif document["spec"]["worker"].is_mapping or document["spec"]["workerSpec"].is_mapping:
        container.device_count = None  # the number of pods of the server is not known


def read_services(documents: list[Value], containers: list[tuple[Container, Value]]) -> None:
    """Adds the services of a file to the containers that they select.

    `containers` has the object of each container.
    """
    for service in documents:
        if service["kind"].text != "Service":
            continue
        name = service["metadata"]["name"]
        selector = {key.text: value.text for key, value in service["spec"]["selector"].items()}
        for container, owner in containers:
            if service["metadata"]["namespace"].text != owner["metadata"]["namespace"].text:
                continue
            container.links.append((name.text, name.place))
            if not selector or not any(
                selector.items() <= labels.items() for labels in _labels_of(owner)
            ):
                continue
            targets = [port["targetPort"] or port["port"] for port in service["spec"]["ports"]]
            ports = [Port(target.number or 0, target.text, target.place) for target in targets]
            if ports:
                container.services.append(ports)


def _labels_of(owner: Value) -> Iterator[dict[str, str]]:
    for value in owner.walk():
        labels = value["metadata"]["labels"]
        if labels.is_mapping:
            yield {key.text: label.text for key, label in labels.items()}
