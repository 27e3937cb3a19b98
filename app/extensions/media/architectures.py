"""The architecture of a served model, and the rules for media in its row of the table of models."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.text.files import model_config
from config.declaration import UsageError
from vllm_facts.models import find_model


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
