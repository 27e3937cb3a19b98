"""Findings about the model of a command line. Start reading at `check_model`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from app.extensions.check.findings import Finding, Place
from app.extensions.check.options import ReadOptions
from app.extensions.check.rules import finding
from config.declaration import ConfigError
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from config.vllm.model_choice import Choice, choose_model, is_folder
from config.vllm.model_flaws import Kind, model_flaws

CODES: Mapping[Kind, str] = {
    "tool-parser": "D401",
    "reasoning-parser": "D402",
    "length": "D403",
    "pooling": "D404",
    "remote-code": "D406",
}


def chosen_model(options: ReadOptions) -> Choice | None:
    """Returns the model; None for one that is not known here."""
    word = options.values.get("model")
    if not isinstance(word, str) or not word:
        return None
    overrides: object = None
    with suppress(UntrustedDataError):
        overrides = decode_untrusted(
            str(options.values.get("hf-overrides", "null")), decoder=python_json
        )
    try:
        return choose_model(word, overrides, skips_check=True)
    except ConfigError:
        return None


def check_model(
    options: ReadOptions, choice: Choice, environment: Mapping[str, Place], place: Place
) -> Iterator[Finding]:
    """Yields what does not suit the model."""
    model = options.values["model"]
    model_place = next((word.place for word in options.words if word.text == model), place)
    if not choice.is_known and not is_folder(str(model)):
        message = f"{model} is not in the table of models, so it is not checked"
        yield finding("D407", model_place, message, fix="give its config.json with --model-config")
    for flaw in model_flaws(options.values, choice, environment):
        found = options.place_of(flaw.option, model_place)
        if flaw.option == "model":
            if "*" in options.unknown_options:
                continue
            found = model_place
        yield finding(CODES[flaw.kind], found, flaw.message, fix=flaw.fix)
