"""Shapes of common models by name, from their `config.json`; other models are read from files."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from config.declaration import ConfigError, UsageError, suggestion
from config.untrusted import UntrustedDataError
from vllm_facts.model_names import full_names
from vllm_facts.model_shape import read_model_config

TABLE = Path(__file__).with_name("known_models.json")
NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(?: [\w.-]+)*")
"""A name of the Hugging Face hub, or its last part, which may have spaces for dashes."""


@cache
def known_models() -> Mapping[str, Mapping[str, object]]:
    """Returns the `config.json` of each model, with the fields that decide costs and memory."""
    return msgspec.json.decode(TABLE.read_bytes(), type=dict[str, dict[str, object]])


def config_of(model: str) -> object:
    """Returns the content of a `config.json`; `model` is a name, a file or a folder.

    The organization, the case and -Instruct may be left out: `llama-3.3-70b`. A copy or a repack of
    a known model has its shape, as for `check`.

    Raises:
        ConfigError: The model is unknown, or the file cannot be read.
    """
    path = Path(model)
    if not os.path.exists(path):  # False for a name that no file can have
        name = full_name(model)
        if name is not None:
            return known_models()[name]
        config = _other_config(model)
        if config is not None:
            return config
        if path.suffix != ".json" and NAME.fullmatch(model):
            raise _unknown_model(model)
    try:
        return read_model_config(path)
    except OSError as error:
        raise ConfigError(f"model config {model} cannot be read: {error.strerror}") from None
    except UntrustedDataError as error:
        raise ConfigError(f"model config {model} is not valid JSON: {error}") from None


def full_name(model: str) -> str | None:
    """Returns the full name of a model in the table, if it is there.

    Raises:
        ConfigError: A short name stands for several models.
    """
    names = full_names(model, known_models())
    if len(names) > 1:
        raise ConfigError(f"model {model!r} could be {' or '.join(names)}")
    return names[0] if names else None


def _other_config(model: str) -> object | None:
    """Returns the best shape of a copy or a repack; None for a name that is neither.

    Raises:
        ConfigError: Several models have the name, or no kernels have the repack's format.
    """
    # Few models are not in the table, and the facts take milliseconds.
    from app.extensions.costs.repacks import REPACKS, configs_of
    from app.extensions.costs.shapes import memory_shape
    from vllm_facts.models import find_model

    try:
        found = find_model(model)
    except UsageError as error:
        raise ConfigError(str(error)) from None
    if found is None:
        return None
    name, facts = found
    for config in configs_of(name, facts, known_models()):
        with suppress(ConfigError):
            memory_shape(config)
            return config
    if facts.base and facts.format not in REPACKS:
        raise ConfigError(
            f"model {model}: the cost of kernels for {facts.format} is unknown; ask for"
            f" {facts.base} in another format, or record a server and calibrate a profile"
        )
    return None


def _unknown_model(model: str) -> ConfigError:
    names = list(known_models())
    short_names = {name.lower().rpartition("/")[2]: name for name in names}
    text = suggestion(model.lower().rpartition("/")[2], short_names)
    for short_name, name in short_names.items():
        text = text.replace(f" {short_name}?", f" {name}?")
    return ConfigError(
        f"model {model}: unknown model{text}; give the path of its config.json, or one of"
        f" {len(names)} names such as {', '.join(sorted(names)[-2:])}"
    )
