"""The architecture of a served model, and the rules for media in its row of the table of models."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.text.files import model_config, takes_media
from config.declaration import UsageError
from vllm_facts.models import find_model
from vllm_facts.registry import read_registry


def architecture_of(model: str) -> str:
    """Returns the architecture of a model by its name or folder; empty for an unknown one."""
    architectures = model_config(model).get("architectures")
    if isinstance(architectures, list) and architectures:
        return str(architectures[0])
    row = row_of(model)
    return "" if row is None else row[0]


def row_of(model: str) -> tuple[str, Mapping[str, object]] | None:
    """Returns the architecture and the rules for media of a model in the table, by its name."""
    try:
        found = find_model(model)
    except UsageError:  # a short name of several models
        return None
    if found is None:
        return None
    return found[1].architecture, found[1].media


def reads_media(model: str) -> bool | None:
    """Returns whether a model reads more than text; None for an unknown one.

    vLLM's registry decides by the architecture, and other fields of the config.json where the
    registry lacks it.
    """
    known = read_registry().reads_media(architecture_of(model))
    if known is not None:
        return known
    config = model_config(model)
    if config:
        return takes_media(config)
    row = row_of(model)
    if row is None or not row[0]:
        return None
    return True
