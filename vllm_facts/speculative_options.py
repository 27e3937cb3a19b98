"""`--spec-method`, `--spec-model` and `--spec-tokens`: fields of `--speculative-config`."""

import json

from config.declaration import ConfigError
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
    values: dict[str, object] = {}
    for name, field in FIELDS.items():
        text = options.pop(name, "")
        if text:
            values[field] = int(str(text)) if name == "spec-tokens" else text
    if not values:
        return
    config = decode_untrusted(str(options.get(CONFIG) or "{}"), decoder=python_json)
    if not isinstance(config, dict):
        raise ConfigError(f"flag --{CONFIG}: must be a JSON object", form=f"--{CONFIG}")
    for name, field in FIELDS.items():
        if field in values and field in config:
            message = f"flag --{name}: cannot be combined with {field} in --{CONFIG}"
            raise ConfigError(message, form=f"--{name}")
    options[CONFIG] = json.dumps(config | values)
