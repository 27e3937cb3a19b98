"""Findings about the model of a command line. Start reading at `check_model`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from config.declaration import ConfigError
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from vllm_facts.model_choice import MODEL_FILES, Choice, choose_model, is_folder, runner_of
from vllm_facts.model_flaws import Kind, model_flaws
from vllm_facts.models import find_model
from workbench.check.checkout import OUTSIDE, is_in_checkout
from workbench.check.findings import Finding, Place
from workbench.check.options import ReadOptions
from workbench.check.rules import finding
from workbench.check.sources import CommandLine

CODES: Mapping[Kind, str] = {
    "tool-parser": "D401",
    "reasoning-parser": "D402",
    "length": "D403",
    "pooling": "D404",
    "remote-code": "D406",
    "runner": "D410",
}
CACHE_BEGINNING = "models--"
"""Begin of a folder in the hub's cache, such as models--Qwen--Qwen3-8B."""


def unread_folder(options: ReadOptions, line: CommandLine) -> Iterator[Finding]:
    """Yields a note if the model is a folder that is not read, as it is not beside the file."""
    word = options.values.get("model")
    if isinstance(word, str) and is_foreign_folder(word, options, line):
        message = f"the model {word} {OUTSIDE}, so its files are not read"
        place = _place_of_model(options, line.place)
        yield finding("F501", place, message, fix="give its config.json with --model-config")


def chosen_model(options: ReadOptions, line: CommandLine) -> Choice | None:
    """Returns the model; None for one that is not known here."""
    word = options.values.get("model")
    if not isinstance(word, str) or not word or is_foreign_folder(word, options, line):
        return None
    overrides: object = None
    with suppress(UntrustedDataError):
        overrides = decode_untrusted(
            str(options.values.get("hf-overrides", "null")), decoder=python_json
        )
    try:
        return choose_model(
            word,
            overrides,
            skips_check=True,
            version=options.version,
            runner=runner_of(options.values),
        )
    except ConfigError:
        return None


def is_foreign_folder(word: str, options: ReadOptions, line: CommandLine) -> bool:
    """Returns whether a model is a folder, or has a file, that is not beside the command line."""
    if not is_folder(word):
        return False
    folder = os.path.expanduser(word)
    if not os.path.exists(folder):
        return False
    place = _place_of_model(options, line.place)
    paths = [folder, *(os.path.join(folder, name) for name in MODEL_FILES)]
    return line.is_in_container or not all(is_in_checkout(path, place) for path in paths)


def model_of_folder(word: str) -> Choice | None:
    """Returns the model with the name of a folder that is elsewhere; None for an unknown name.

    The name is the last part of a path or an address, or the part of the hub's cache.
    """
    if not (is_folder(word) or "://" in word):
        return None
    parts = [part for part in word.split("/") if part]
    name = parts[-1] if parts else ""
    for part in parts:
        if part.startswith(CACHE_BEGINNING):
            name = part.removeprefix(CACHE_BEGINNING).replace("--", "/")
    with suppress(ConfigError):
        card = find_model(name)
        if card is not None:
            return Choice(name=card[0], written_name=word, facts=card[1])
    return None


def check_model(
    options: ReadOptions, choice: Choice, environment: Mapping[str, Place], place: Place
) -> Iterator[Finding]:
    """Yields what does not suit the model."""
    model = options.values["model"]
    model_place = _place_of_model(options, place)
    if not choice.is_known and not is_folder(str(model)):
        message = f"{model} is not in the table of models, so it is not checked"
        yield finding("D407", model_place, message, fix="give its config.json with --model-config")
    for flaw in model_flaws(options.values, choice, environment, options.version):
        flaw_place = options.place_of(flaw.option, model_place)
        if flaw.option == "model":
            if "*" in options.unknown_options:
                continue
            flaw_place = model_place
        yield finding(CODES[flaw.kind], flaw_place, flaw.message, fix=flaw.fix)


def _place_of_model(options: ReadOptions, default: Place) -> Place:
    model = options.values["model"]
    return next((word.place for word in options.words if word.text == model), default)
