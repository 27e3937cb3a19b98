"""The YAML file: one flat mapping of setting names to values."""

from collections.abc import Callable, Hashable
from pathlib import Path

import yaml

from config.declaration import ConfigError
from config.sources import IGNORED


def read_yaml(path: str, warn: Callable[[str], None]) -> dict[str, object]:
    """Setting name to YAML value. Keys may be written with underscores.

    Raises ConfigError when the file cannot be read or parsed, is not a flat mapping, or has a setting twice.
    Which keys are settings is up to the plugins that it may name.
    """
    document = parse_yaml(path)
    if not isinstance(document, dict):
        raise ConfigError(f"YAML file {path}: must be a mapping of setting names to values")
    values: dict[str, object] = {}
    for key, value in document.items():
        name = str(key).replace("_", "-")
        if name in IGNORED:
            warn(f"YAML file {path}: {key} is accepted and ignored")
            continue
        if name in values:
            raise ConfigError(f"YAML file {path}: {name} is given twice")
        values[name] = value
    return values


class _Loader(yaml.SafeLoader):
    """A safe loader for which a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        keys = [key.value for key, _ in node.value]
        repeated = next((key for key in keys if keys.count(key) > 1), None)
        if repeated is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{repeated} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def parse_yaml(path: str) -> object:
    """What the file holds, an empty mapping when it is empty. ConfigError when it cannot be read."""
    try:
        text = Path(path).read_text("utf-8")
        document: object = yaml.load(text, _Loader)
    except OSError as error:
        raise ConfigError(f"YAML file {path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"YAML file {path}: cannot be parsed: {error}") from None
    return {} if document is None else document
