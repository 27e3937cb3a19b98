"""Objects whose controller writes the command line: KubeAI, KServe, and Ray Serve.

Each function takes a document, and yields the containers that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vllm_facts.facts import OPTIONS
from vllm_facts.words import option_words
from workbench.check.clusters.container import Container
from workbench.check.clusters.device_names import device_of_label
from workbench.check.clusters.pods import (
    read_container,
    read_resources,
    read_variables,
    words_of,
)
from workbench.check.documents import Value, read_documents
from workbench.check.shell_words import split_commands
from workbench.check.sources import Word

Reader = Callable[[Value, set[int]], Iterator[Container]]
SCHEMES = ("hf://", "oci://", "pvc://", "s3://", "gs://", "ollama://")
HUB = "hf://"
RUNTIME_OPTIONS = frozenset(
    ("model_name", "model_id", "model_dir", "model_revision", "backend", "task", "http_port")
)
"""Options of KServe's runtime for Hugging Face that are not vLLM's."""
ADDITIONAL = "VLLM_ADDITIONAL_ARGS"
"""Variable with further arguments in KServe's presets."""


def model_word(uri: Value) -> Word:
    """Returns the model of an address such as hf://Qwen/Qwen3-8B; others are not known."""
    text = uri.text
    if text.startswith(HUB):
        return uri.word(text.removeprefix(HUB).partition("?")[0].rstrip("/"))
    unknown = text if text.startswith(SCHEMES) or "{{" in text or not text else ""
    return Word(text, uri.place, unknown, is_quoted=True)


def kubeai_models(document: Value, seen: set[int]) -> Iterator[Container]:
    """Yields the server of a KubeAI `Model`, or of each model in the values of its chart."""
    if document["kind"].text == "Model":
        specs = [document["spec"]]
    else:
        specs = [spec for _, spec in document["catalog"].items()]
    for spec in specs:
        if spec["url"] and spec["engine"].text in ("", "VLLM"):
            yield _of_kubeai(spec)


def _of_kubeai(spec: Value) -> Container:
    container = served(spec, model_word(spec["url"]))
    profile, _, count = spec["resourceProfile"].text.partition(":")
    container.device = device_of_label(profile)
    if container.device:
        container.device_count = int(count) if count.isdecimal() else 1
        container.device_place = spec["resourceProfile"].place
    read_variables(container, spec["env"])
    container.words += words_of(spec["args"])
    return container


def served(source: Value, model: Word) -> Container:
    """Returns a container that runs `vllm serve MODEL`."""
    container = Container(source.place, has_command=True)
    container.words += [Word("vllm", model.place), Word("serve", model.place), model]
    return container


def kserve_services(document: Value, seen: set[int]) -> Iterator[Container]:
    """Yields the servers of KServe's objects without a command of their own."""
    if document["kind"].text == "LLMInferenceService":
        spec = document["spec"]
        for part in (spec, spec["prefill"]):
            if part.is_mapping:
                yield from _of_preset(part, spec["model"], seen)
    elif document["kind"].text == "InferenceService":
        yield from _of_runtime(document["spec"]["predictor"], seen)


def _of_preset(part: Value, model: Value, seen: set[int]) -> Iterator[Container]:
    """Yields the server of a preset; its container adds arguments."""
    main = next(
        (each for each in part["template"]["containers"] if each["name"].text == "main"),
        Value(None, part.source),
    )
    if main["command"] or main["args"]:
        return  # read as the container of any pod
    seen.add(id(main.node))
    container = served(part if part["template"] else model, model_word(model["uri"]))
    written = read_container(main)
    if written is not None:
        container.image, container.image_place = written.image, written.image_place
    read_variables(container, main["env"])
    read_resources(container, main["resources"])
    for variable in main["env"]:
        if variable["name"].text == ADDITIONAL:
            _add_split(container, variable["value"])
    parallelism = part["parallelism"]
    for key in ("tensor", "pipeline", "data"):
        if parallelism[key]:
            container.words.append(parallelism[key].word(f"--{key}-parallel-size"))
            container.words.append(parallelism[key].word())
    if parallelism["data"] or part["worker"]:
        container.device_count = None  # of one pod of several
    yield container


def _add_split(container: Container, value: Value) -> None:
    for command in split_commands(value.content):
        for word in command:
            container.words.append(word)


def _of_runtime(predictor: Value, seen: set[int]) -> Iterator[Container]:
    """Yields the server of KServe's runtime for Hugging Face, which takes vLLM's options."""
    model = predictor["model"]
    kind = model["modelFormat"]["name"].text.lower()
    if kind not in ("huggingface", "vllm") or not model["args"]:
        return
    words = words_of(model["args"])
    own, others = _split_runtime_options(words)
    name = own.get("model_id") or own.get("model_dir")
    found = name or Word(model["storageUri"].text, model.place, "the model")
    container = served(model["args"], model_word(model["storageUri"]) if not name else found)
    container.words += others
    read_variables(container, model["env"])
    read_resources(container, model["resources"])
    yield container


def _split_runtime_options(
    words: list[Word],
) -> tuple[dict[str, Word], list[Word]]:
    """Returns the values of the runtime's own options, and the other words."""
    own: dict[str, Word] = {}
    others: list[Word] = []
    pending = ""
    for word in words:
        name, equals, value = word.text.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if pending:
            own[pending] = word
            pending = ""
        elif word.text.startswith("--") and name in RUNTIME_OPTIONS:
            if equals:
                own[name] = Word(value, word.place, is_quoted=True)
            else:
                pending = name
        else:
            others.append(word)
    return own, others


def ray_services(document: Value, seen: set[int]) -> Iterator[Container]:
    """Yields the servers of Ray Serve's configurations, alone or in a RayService."""
    configurations = [document]
    if document["spec"]["serveConfigV2"].text:
        configurations = list(read_documents(document["spec"]["serveConfigV2"].content))
    for configuration in configurations:
        for application in configuration["applications"]:
            arguments = application["args"]
            listed = [each for each in arguments["llm_configs"] if each.is_mapping]
            for each in listed:
                yield _of_ray(each)


def _of_ray(configuration: Value) -> Container:
    loading = configuration["model_loading_config"]
    source = loading["model_source"] if loading["model_source"].text else loading["model_id"]
    container = served(configuration, model_word(source))
    container.device = device_of_label(configuration["accelerator_type"].text)
    for key, value in configuration["engine_kwargs"].items():
        plain = value.plain()
        option = OPTIONS.get(key.text.replace("_", "-"))
        if plain is None or (plain is False and option is not None and not option.off):
            continue
        for word in option_words(key.text, plain, is_option=True):
            container.words.append(key.word(word))
    return container


READERS: tuple[Reader, ...] = (kubeai_models, kserve_services, ray_services)
