"""Reads YAML files, with repeated keys rejected, and with limits on the expansion of aliases."""

import re
from collections.abc import Callable, Hashable
from functools import partial
from typing import NoReturn

import yaml

from config.declaration import MAX_SHOWN_LENGTH, ConfigError
from config.files import read_text
from config.untrusted import UntrustedDataError

MAX_YAML_BYTES = 4 << 20
"""Maximum size of a file: the parser takes seconds for each MiB."""
MAX_NODES = 200_000
"""Maximum number of values in a file as it is written; each takes the parser 0.5 to 1 KB."""
MAX_VALUES = 500_000
"""Maximum number of values in a file, with aliases expanded."""
MAX_LEVELS = 100
"""Maximum depth of nested lists and mappings."""
MAX_NUMBER_CHARACTERS = 1000
"""Longest whole number; Python converts numbers of at most 4,300 digits to texts."""
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_LINE_END = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
YAML_ERRORS = (
    *(yaml.YAMLError, ValueError, LookupError),
    *(AttributeError, OverflowError, RecursionError),
)
"""Errors of the loader; a wrong value with a tag, such as `!!bool x`, raises almost any."""


class LimitedLoader(yaml.SafeLoader):
    """A safe loader that rejects a file of too many values before the last value.

    It also rejects whole numbers that are too long for Python's conversions.
    """

    node_count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Counts the values of the file."""
        self.node_count += 1
        if self.node_count > MAX_NODES:
            raise yaml.composer.ComposerError(problem=f"the file has more than {MAX_NODES} values")
        return super().compose_node(parent, index)

    def construct_short_int(self, node: yaml.ScalarNode) -> int:
        """Returns a whole number."""
        if len(node.value) > MAX_NUMBER_CHARACTERS:
            raise yaml.constructor.ConstructorError(
                None, None, "a number is too long", node.start_mark
            )
        return self.construct_yaml_int(node)


LimitedLoader.add_constructor("tag:yaml.org,2002:int", LimitedLoader.construct_short_int)


class PlainNumberLoader(LimitedLoader):
    """A loader that rejects numbers that YAML 1.1 reads otherwise than people.

    `1:30` is the number 90 there, and `010` is 8. YAML 1.2 has neither.
    """

    def construct_plain_int(self, node: yaml.ScalarNode) -> int:
        """Returns a whole number."""
        number = self.construct_short_int(node)
        self._check_base(node, number)
        return number

    def construct_plain_float(self, node: yaml.ScalarNode) -> float:
        """Returns a number."""
        self._check_base(node, self.construct_yaml_float(node))
        return self.construct_yaml_float(node)

    def _check_base(self, node: yaml.ScalarNode, number: float) -> None:
        text = str(node.value)
        is_octal = _OCTAL.fullmatch(text) is not None
        if ":" in text or is_octal:
            base = 8 if is_octal else 60
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"{text} would be {number:g} in YAML 1.1, which reads it in base {base};"
                " put it in quotes, or write the number in base 10",
                node.start_mark,
            )


PlainNumberLoader.add_constructor("tag:yaml.org,2002:int", PlainNumberLoader.construct_plain_int)
PlainNumberLoader.add_constructor(
    "tag:yaml.org,2002:float", PlainNumberLoader.construct_plain_float
)


class _UniqueKeys(LimitedLoader):
    """A loader that rejects or collects repeated keys, and rejects merges (`<<`) of too many."""

    merged = 0
    """Number of keys in all mappings so far, merged keys included."""

    def __init__(self, text: str, repeated_keys: list[str] | None = None) -> None:
        super().__init__(text)
        self._repeated_keys = repeated_keys

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                if self._repeated_keys is None:
                    self._reject(f"{key.value} is specified twice", key)
                self._repeated_keys.append(str(key.value))
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        self.merged += len(node.value)
        if self.merged > MAX_VALUES:
            self._reject(f"mappings have more than {MAX_VALUES} keys", node)

    def _reject(self, reason: str, node: yaml.Node) -> NoReturn:
        raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark)


class _Loader(_UniqueKeys, PlainNumberLoader):
    """A loader for the files of this project."""


def parse_yaml(
    path: str,
    max_bytes: int = MAX_YAML_BYTES,
    *,
    repeated_keys: list[str] | None = None,
    has_all_numbers: bool = False,
) -> object:
    """Returns the content of a file of at most `max_bytes`; {} for an empty file.

    Keys that a mapping repeats are added to `repeated_keys`, and the last value counts.
    `has_all_numbers` reads the octal and sexagesimal numbers of YAML 1.1, as vLLM does.

    Raises:
        ConfigError: The file cannot be read, or is invalid, or repeats a key and `repeated_keys` is
            None; the message is one line.
    """
    try:
        text = read_text(path, max_bytes)
    except OSError as error:
        raise ConfigError(f"YAML file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _unparsed(path, error) from None
    return parse_yaml_text(path, text, repeated_keys=repeated_keys, has_all_numbers=has_all_numbers)


def parse_yaml_text(
    path: str, text: str, *, repeated_keys: list[str] | None = None, has_all_numbers: bool = False
) -> object:
    """Returns the content of a file whose text was read before, as `parse_yaml` does.

    Raises:
        ConfigError: as `parse_yaml`.
    """
    loader = _UniqueKeys if has_all_numbers else _Loader
    try:
        document = decode_yaml(text, partial(loader, repeated_keys=repeated_keys))
    except UntrustedDataError as error:
        raise _unparsed(path, error) from None
    flaw = oversize(document)
    if flaw:
        raise ConfigError(f"YAML file {path}: {flaw}")
    return {} if document is None else document


def _unparsed(path: str, error: ValueError) -> ConfigError:
    reason = " ".join(str(error).split())
    return ConfigError(f"YAML file {path} cannot be parsed: {reason}")


def decode_yaml(text: str, loader: Callable[[str], LimitedLoader] = LimitedLoader) -> object:
    """Returns the content of YAML text.

    The loader in Python: the one in C crashes where the nesting is deep.

    Raises:
        UntrustedDataError: The text is malformed, or nested too deeply.
    """
    try:
        document: object = loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        raise UntrustedDataError(explain(error, text)) from None
    except YAML_ERRORS as error:
        raise UntrustedDataError(str(error)) from None
    return document


def explain(error: yaml.MarkedYAMLError, text: str, first_line: int = 1) -> str:
    """Returns the number of the line with the error, the problem, and the text of the line."""
    problem = error.problem or error.context or "invalid YAML"
    lines = _LINE_END.split(text)
    for mark in (error.problem_mark, error.context_mark):
        # The problem of a text without its end is at the end of the file, on an empty line.
        if mark is not None and mark.line < len(lines) and lines[mark.line].strip():
            line = lines[mark.line].strip()[:MAX_SHOWN_LENGTH]
            return f"line {mark.line + first_line}: {problem}: {line}"
    return problem


def oversize(document: object) -> str:
    """Returns the limit that a document breaks with its aliases expanded; empty if none."""
    pending = [(document, 1)]
    count = 0
    while pending:
        item, depth = pending.pop()
        if isinstance(item, dict):
            children = list(item.values())
        elif isinstance(item, list):
            children = item
        else:
            continue
        if children and depth > MAX_LEVELS:
            return f"lists and mappings are nested more than {MAX_LEVELS} levels deep"
        count += len(children)
        if count > MAX_VALUES:
            return f"with its aliases written out, it has more than {MAX_VALUES} values"
        pending.extend((child, depth + 1) for child in children)
    return ""
