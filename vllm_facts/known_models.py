"""The `config.json` of common models by name (`vllm_facts.models`), or of a file."""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from config.declaration import ConfigError, suggestion
from config.untrusted import UntrustedDataError
from vllm_facts.model_names import full_names
from vllm_facts.model_shape import read_model_config
from vllm_facts.models import read_rows

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(?: [\w.-]+)*")
"""A name of the Hugging Face hub, or its last part, which may have spaces for dashes."""


@cache
def known_models() -> Mapping[str, Mapping[str, object]]:
    """Returns the `config.json` of each model, with the fields that decide costs and memory."""
    return {name: row.read_config() for name, row in read_rows().items() if bytes(row.config)}


def config_of(model: str) -> object:
    """Returns the content of a `config.json`; `model` is a name, a file or a folder.

    The organization, the case and -Instruct may be left out: `llama-3.3-70b`.

    Raises:
        ConfigError: The model is unknown, or the file cannot be read.
    """
    path = Path(model)
    if not os.path.exists(path):  # False for a name that no file can have
        name = full_name(model)
        if name is not None:
            return known_models()[name]
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
