"""Schemas to judge: JSON-Schema-Test-Suite, JSONSchemaBench, and random ones."""

import importlib.metadata
import json
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Schemas = Iterator[tuple[str, Any]]
"""Name and schema."""
DRAFTS = ("draft4", "draft6", "draft7", "draft2019-09", "draft2020-12")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
NAMES = ("a", "b", "c")
MAX_DEPTH = 3
NUMBERS = (0, 1, 2, 3, 5, 10, -1, 0.5, 2.0, 1e19, 9223372036854776000, True, "1")
COUNTS = (0, 1, 2, 3, -1, 2.0)
FORMATS = ("date", "email", "uuid", "uri", "int32", "ipv4", "json-pointer", "unknown", "regex")
PATTERNS = ("^a", "a|b", "^(?=a)", r"\p{L}+", r"(a)\1", r"\bx", "[a-z]+$", r"^\w+\.$", "a$b")
REFERENCES = ("#", "#/$defs/a", "#/$defs/b", "#/$defs/c", "#foo", "#/properties/a", "#/%24defs/a")
LIMIT_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
COUNT_KEYWORDS = tuple(
    f"{end}{part}" for end in ("min", "max") for part in ("Length", "Items", "Properties")
)
LIST_KEYWORDS = ("prefixItems", "anyOf", "oneOf", "allOf")
SCHEMA_KEYWORDS = (
    *("items", "additionalItems", "additionalProperties", "unevaluatedProperties"),
    *("unevaluatedItems", "propertyNames", "contains", "not", "if", "then"),
)
OTHER_KEYWORDS = (
    *("properties", "patternProperties", "required", "enum", "const", "format", "pattern"),
    *("uniqueItems", "$ref", "title", "multipleOf", "dependentRequired", "x-other"),
)
KEYWORDS = LIMIT_KEYWORDS + COUNT_KEYWORDS + LIST_KEYWORDS + SCHEMA_KEYWORDS + OTHER_KEYWORDS


def suite_schemas(folder: Path) -> Schemas:
    """Yields the schemas of the test suite in the source distribution of `jsonschema`.

    The distribution is downloaded to `folder` if it is not there.
    """
    version = importlib.metadata.version("jsonschema")
    archive = folder / f"jsonschema-{version}.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "jsonschema", "--dest", str(folder), f"jsonschema=={version}"]
        subprocess.run(command, check=True)
    with tarfile.open(archive) as files:
        for member in files:
            parts = Path(member.name).parts
            if (
                parts[1:3] == ("json", "tests")
                and parts[3] in DRAFTS
                and parts[-1].endswith("json")
            ):
                content = files.extractfile(member)
                if content is not None:
                    for group in json.load(content):
                        yield "/".join((*parts[3:], group["description"])), group["schema"]


def bench_schemas(folder: Path) -> Schemas:
    """Yields the schemas in the JSON files of a folder, such as a copy of JSONSchemaBench."""
    for path in sorted(folder.rglob("*.json")):
        yield str(path.relative_to(folder)), json.loads(path.read_text(encoding="utf-8"))


def random_schemas(count: int, seed: int = 1) -> Schemas:
    """Yields schemas of keywords that need not go together."""
    writer = _RandomSchemas(random.Random(seed))
    for number in range(count):
        yield f"random/{seed}/{number}", writer.schema(0)


class _RandomSchemas:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def schema(self, depth: int) -> Any:
        rng = self._rng
        if depth and rng.random() < 0.08:
            return rng.random() < 0.6
        schema: dict[str, Any] = {}
        if rng.random() < 0.75:
            schema["type"] = rng.choice(TYPES)
        if rng.random() < 0.1:
            schema["type"] = rng.sample(TYPES, rng.randint(0, 3))
        for keyword in rng.sample(KEYWORDS, rng.choice((0, 1, 1, 2, 3))):
            schema[keyword] = self._value(keyword, depth)
        if not depth and rng.random() < 0.3:
            schema["$defs"] = {name: self.schema(1) for name in NAMES[:2]}
        items = list(schema.items())
        rng.shuffle(items)
        return dict(items)

    def _value(self, keyword: str, depth: int) -> Any:
        if keyword in LIMIT_KEYWORDS:
            return self._one_of(NUMBERS, usual=6)
        if keyword in COUNT_KEYWORDS:
            return self._one_of(COUNTS, usual=4)
        if keyword in LIST_KEYWORDS:
            return self._schemas(depth)
        if keyword in SCHEMA_KEYWORDS:
            if keyword == "items" and self._rng.random() < 0.25:
                return self._schemas(depth)
            return self._inner(depth)
        return self._other_value(keyword, depth)

    def _other_value(self, keyword: str, depth: int) -> Any:
        rng = self._rng
        match keyword:
            case "properties":
                return {name: self._inner(depth) for name in rng.sample(NAMES, 2)}
            case "patternProperties":
                return {pattern: self._inner(depth) for pattern in rng.sample(PATTERNS, 2)}
            case "required":
                return rng.choice((["a"], ["a", "b"], ["z"], [], True, ["a", 1]))
            case "enum":
                return rng.sample(("a", "b", 1, 2.5, None, True, ["a"], {"a": 1}), 2)
            case "format":
                return rng.choice(FORMATS)
            case "pattern":
                return rng.choice(PATTERNS)
            case "$ref":
                return rng.choice(REFERENCES)
            case "multipleOf":
                return rng.choice((1, 2, 0.5, 0.01, 0, -1, 1e10, 0.123456789))
            case "dependentRequired":
                return {"a": ["b"]}
        return rng.choice((True, 5, "x"))

    def _inner(self, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            return self._rng.choice((True, False, {}, {"type": "string"}))
        return self.schema(depth + 1)

    def _schemas(self, depth: int) -> list[Any]:
        return [self._inner(depth) for _ in range(self._rng.randint(0, 3))]

    def _one_of(self, values: Sequence[Any], usual: int) -> Any:
        """Returns one of the first `usual` values, seldom one of the others."""
        if self._rng.random() < 0.8:
            return self._rng.choice(values[:usual])
        return self._rng.choice(values[usual:])
