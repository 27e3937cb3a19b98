"""`--spec-method`, `--spec-model` and `--spec-tokens`: fields of `--speculative-config`."""

import json
from collections.abc import Iterator
from typing import Any

from config.declaration import ConfigError
from config.flag_words import FlagError
from config.sources import FlagValues
from config.untrusted import decode_untrusted, python_json

CONFIG = "speculative-config"
FIELDS = {
    "spec-method": "method",
    "spec-model": "model",
    "spec-tokens": "num_speculative_tokens",
}
"""Option -> field of the configuration."""


def merge_short_options(options: FlagValues) -> None:
    """Moves the values of the short options into `--speculative-config`.

    As in vLLM, they replace fields that the configuration spells with dashes.

    Raises:
        ConfigError: A field has a value in both, or the configuration is not an object.
    """
    for error in short_option_conflicts(options):
        raise error
    values: dict[str, object] = {}
    for name, field in FIELDS.items():
        text = options.pop(name, "")
        if text:
            values[field] = int(str(text)) if name == "spec-tokens" else text
    if values:
        options[CONFIG] = json.dumps(_config_of(options) | values)


def short_option_conflicts(options: FlagValues) -> Iterator[FlagError]:
    """Yields why short options do not go with `--speculative-config`: one error an option."""
    names = [name for name in FIELDS if options.get(name)]
    if not names:
        return
    config = _config_of(options)
    if not isinstance(config, dict):
        yield _wrong(CONFIG, "must be a JSON object")
        return
    for name in names:
        if FIELDS[name] in config:
            yield _wrong(name, f"cannot be combined with {FIELDS[name]} in --{CONFIG}")


def _config_of(options: FlagValues) -> Any:
    return decode_untrusted(str(options.get(CONFIG) or "{}"), decoder=python_json)


def _wrong(name: str, text: str) -> FlagError:
    return FlagError(f"--{name}: {text}", form=f"--{name}", status=ConfigError.status)
