"""Containers in values of Helm charts: vLLM's production stack, llm-d's model service, others.

Start reading at `containers_in_values`.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.check.clusters.container import Container
from workbench.check.clusters.device_names import device_of_label
from workbench.check.clusters.kinds import model_word, served
from workbench.check.clusters.pods import (
    device_of_pod,
    image_of,
    read_container,
    read_resources,
    read_variables,
    words_of,
)
from workbench.check.documents import Value
from workbench.check.sources import Word

STACK_OPTIONS = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
    "runner": "--runner",
    "convert": "--convert",
    "toolCallParser": "--tool-call-parser",
}
"""Keys of `vllmConfig` in vLLM's production stack -> options."""
STACK_SWITCHES = {
    "enableChunkedPrefill": "enable-chunked-prefill",
    "enablePrefixCaching": "enable-prefix-caching",
}
ROLES = ("decode", "prefill")


def containers_in_values(document: Value, seen: set[int]) -> Iterator[Container]:
    """Yields the containers that a chart makes of its values."""
    yield from _production_stack(document)
    yield from _model_service(document, seen)


def single_containers(document: Value, seen: set[int]) -> Iterator[Container]:
    """Yields containers outside of a list: of a chart's values, or of an object of another kind."""
    for value in document.walk():
        if id(value.node) in seen or not value["image"]:
            continue
        image = value["image"]
        source = image if image["command"] or image["args"] else value
        if not (source["command"] or source["args"]) or id(source.node) in seen:
            continue
        container = read_container(source)
        if container is None:
            continue
        seen.add(id(source.node))
        container.image = image_of(image)
        container.image_place = image.place
        if not container.environment:
            read_variables(container, value["env"])
        if container.device_count is None:
            read_resources(container, value["resources"])
        container.device = device_of_pod(value)
        yield container


def _production_stack(document: Value) -> Iterator[Container]:
    """Yields the servers of vLLM's production stack, as its chart starts them."""
    for spec in document["servingEngineSpec"]["modelSpec"]:
        if not spec["modelURL"]:
            continue
        container = served(spec, model_word(spec["modelURL"]))
        tag = spec["tag"].text
        container.image = spec["repository"].text + (f":{tag}" if tag else "")
        container.image_place = (spec["tag"] or spec).place
        container.device_count = spec["requestGPU"].number
        container.device_place = spec["requestGPU"].place
        if spec["requestGPUType"].text.startswith("nvidia.com/mig"):
            container.device_count = None
        container.device = device_of_pod(spec)
        read_variables(container, spec["env"])
        _add_stack_options(container, spec)
        options = spec["vllmConfig"]
        _add_stack_options(container, options)
        container.words += words_of(options["extraArgs"])
        yield container


def _add_stack_options(container: Container, options: Value) -> None:
    for key, value in options.items():
        if key.text in STACK_OPTIONS and value.text:
            container.words.append(key.word(STACK_OPTIONS[key.text]))
            container.words.append(value.word())
        elif key.text in STACK_SWITCHES:
            off = "" if value.is_true else "no-"
            container.words.append(key.word(f"--{off}{STACK_SWITCHES[key.text]}"))
        elif key.text == "enableLoRA" and value.is_true:
            container.words.append(key.word("--enable-lora"))
        elif key.text == "enableTool" and value.is_true:
            container.words.append(key.word("--enable-auto-tool-choice"))


def stack_runtimes(document: Value) -> Iterator[Container]:
    """Yields the server of a `VLLMRuntime` of the production stack's operator."""
    spec = document["spec"]
    if document["kind"].text != "VLLMRuntime" or not spec["model"]["modelURL"]:
        return
    container = served(spec["model"], model_word(spec["model"]["modelURL"]))
    deployment = spec["deploymentConfig"]
    container.image = image_of(deployment["image"])
    container.image_place = deployment["image"].place
    container.device_count = deployment["resources"]["gpu"].number
    container.device_place = deployment["resources"]["gpu"].place
    for options in (spec["model"], spec["vllmConfig"]):
        _add_stack_options(container, options)
        container.words += words_of(options["extraArgs"])
        read_variables(container, options["env"])
    yield container


def _model_service(document: Value, seen: set[int]) -> Iterator[Container]:
    """Yields the servers of llm-d's model service."""
    artifacts = document["modelArtifacts"]
    for role in ROLES:
        part = document[role]
        if not artifacts or part["create"].text.lower() == "false":
            continue
        for element in part["containers"]:
            container = _of_model_service(element, artifacts, part)
            if container is not None:
                seen.add(id(element.node))
                accelerator = part["accelerator"]["type"] or document["accelerator"]["type"]
                container.device = device_of_pod(part) or device_of_label(accelerator.text)
                yield container


def _of_model_service(element: Value, artifacts: Value, part: Value) -> Container | None:
    if element["modelCommand"].text == "custom":
        return read_container(element)
    if element["modelCommand"].text != "vllmServe":
        return None
    name = artifacts["name"]
    is_template = "{{" in name.text or not name.text
    model = Word(name.text, name.place, "the model") if is_template else name.word()
    container = served(element["args"] or element, model)
    container.image = image_of(element["image"])
    container.image_place = element["image"].place
    container.words += words_of(element["args"])
    read_variables(container, element["env"])
    read_resources(container, element["resources"])
    for key in ("tensor", "data"):
        size = part["parallelism"][key]
        if size:
            container.words.append(size.word(f"--{key}-parallel-size"))
            container.words.append(size.word())
    local = part["parallelism"]["dataLocal"]
    if local:
        container.words.append(local.word("--data-parallel-size-local"))
        container.words.append(local.word())
    return container
