"""Random schemas that are known to be satisfiable: each is made around a value that satisfies it."""

from __future__ import annotations

from random import Random
from typing import Any

from jsonschema import Draft202012Validator

Schema = dict[str, Any]

NAMES = ("city", "days", "unit", "user_id", "tags", "limit", "from", "to", "options", "x-note")
STRINGS = ("Lisbon", "red", "two words", "", "a-b-c", "x", "42", "2026-03-14", "ada@example.com", "ÅÄÖ")
PATTERNS = (
    (r"^[A-Z]{2}\d{4}$", "AB1234"),
    (r"^[a-z]+(-[a-z]+)*$", "north-east"),
    (r"\d+", "room 12"),
    (r"^(\+\d{1,3} )?\d{3,4}-\d{4}$", "+46 555-0142"),
    (r"^(?=.*\d)[a-z\d]{6,}$", "abc123"),
    (r"^#?([a-f0-9]{6}|[a-f0-9]{3})$", "#a1b2c3"),
)
FORMATS = (
    ("date", "2026-03-14"),
    ("date-time", "2026-03-14T09:30:00Z"),
    ("email", "ada@example.com"),
    ("ipv4", "192.0.2.7"),
    ("uuid", "9b2f6f0e-52a1-4f3e-8f0a-1d2c3b4a5968"),
    ("uri", "https://example.com/a"),
)
MOST_DEPTH = 4


def valid(schema: Any, value: Any) -> bool:
    """The oracle: `jsonschema` as it comes."""
    return Draft202012Validator(schema).is_valid(value)


def tool_parameters(rng: Random) -> tuple[Schema, Any]:
    """A schema of type object as tools have it, and a value that satisfies it."""
    while True:
        value = {name: random_value(rng, 1) for name in rng.sample(NAMES, rng.randint(0, 5))}
        maker = Maker(rng)
        schema = {**maker.of_object(value, 0), "type": "object"}
        if rng.random() < 0.25:
            maker.combine(schema, value, 0)
        if maker.definitions:
            schema["$defs"] = maker.definitions
        if valid(schema, value):
            return schema, value


def random_value(rng: Random, depth: int) -> Any:
    kind = rng.randrange(7 if depth < MOST_DEPTH else 5)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([0, 1, 7, -3, 12, 100, 250, 10**12])
    if kind == 2:
        return rng.choice([0.5, -1.25, 3.0, 99.95, 1e6])
    if kind in (3, 4):
        return rng.choice(STRINGS) if rng.random() < 0.6 else rng.choice([*PATTERNS, *FORMATS])[1]
    if kind == 5:
        return [random_value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return {name: random_value(rng, depth + 1) for name in rng.sample(NAMES, rng.randint(0, 4))}


class Maker:
    """Makes schemas around values."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.definitions: dict[str, Schema] = {}

    def often(self, chance: float) -> bool:
        return self.rng.random() < chance

    def around(self, value: Any, depth: int) -> Any:
        """A schema that accepts `value`."""
        if self.often(0.03):
            return True
        schema = self.plain(value, depth)
        if depth < MOST_DEPTH and self.often(0.25):
            self.combine(schema, value, depth)
        if self.often(0.05):
            name = f"part{len(self.definitions)}"
            self.definitions[name] = schema
            return {"$ref": f"#/$defs/{name}"}
        return schema

    def other(self, depth: int) -> Any:
        """A schema of another value."""
        return self.plain(random_value(self.rng, depth + 1), depth + 1)

    def plain(self, value: Any, depth: int) -> Schema:
        if self.often(0.08):
            return {"const": value}
        if self.often(0.12) and not isinstance(value, (list, dict)):
            others = [random_value(self.rng, MOST_DEPTH) for _ in range(self.rng.randint(0, 3))]
            return {"enum": self.rng.sample([value, *others], 1 + len(others))}
        schema: Schema
        if isinstance(value, bool) or value is None:
            schema = {"type": "null" if value is None else "boolean"}
        elif isinstance(value, str):
            schema = self.of_string(value)
        elif isinstance(value, (int, float)):
            schema = self.of_number(value)
        else:
            of = self.of_array if isinstance(value, list) else self.of_object
            schema = of(value, depth)
        if self.often(0.15):
            schema.pop("type", None)
        elif self.often(0.1):
            schema["type"] = list(
                dict.fromkeys([schema["type"], self.rng.choice(["null", "string", "array"])])
            )
        return schema

    def of_string(self, value: str) -> Schema:
        schema: Schema = {"type": "string"}
        for pattern, example in PATTERNS:
            if value == example and self.often(0.8):
                schema["pattern"] = pattern
        for name, example in FORMATS:
            if value == example and self.often(0.7):
                schema["format"] = name
        if self.often(0.2):
            schema["minLength"] = self.rng.randint(0, len(value))
        if self.often(0.2):
            schema["maxLength"] = len(value) + self.rng.randint(0, 10)
        return schema

    def of_number(self, value: float) -> Schema:
        schema: Schema = {"type": "integer" if isinstance(value, int) and self.often(0.8) else "number"}
        if self.often(0.4):
            schema["minimum"] = value - self.rng.choice([0, 1, 5, 1000])
        if self.often(0.4):
            schema["maximum"] = value + self.rng.choice([0, 1, 5, 1000])
        if self.often(0.1):
            schema["exclusiveMinimum"] = value - self.rng.choice([1, 0.5])
        if self.often(0.1):
            schema["exclusiveMaximum"] = value + self.rng.choice([1, 0.5])
        for divisor in (2, 5, 0.25, 0.05):
            if self.often(0.08) and valid({"multipleOf": divisor}, value):
                schema["multipleOf"] = divisor
        return schema

    def of_array(self, value: list[Any], depth: int) -> Schema:
        schema: Schema = {"type": "array"}
        parts = [self.around(each, depth + 1) for each in value]
        if parts and self.often(0.3):
            split = self.rng.randint(1, len(parts))
            schema["prefixItems"] = parts[:split]
            parts = parts[split:]
        if self.often(0.7):
            schema["items"] = self.of_all(parts, depth)
        if self.often(0.3):
            schema["minItems"] = self.rng.randint(0, len(value))
        if self.often(0.3):
            schema["maxItems"] = len(value) + self.rng.randint(0, 3)
        if self.often(0.2) and valid({"uniqueItems": True}, value):
            schema["uniqueItems"] = True
        if value and self.often(0.15):
            schema["contains"] = self.around(self.rng.choice(value), depth + 1)
            if self.often(0.3):
                schema["maxContains"] = len(value)
        return schema

    def of_all(self, parts: list[Any], depth: int) -> Any:
        """A schema for values of all `parts`."""
        if not parts:
            return self.other(depth) if self.often(0.8) else False
        return {"anyOf": parts} if len(parts) > 1 else parts[0]

    def of_object(self, value: dict[str, Any], depth: int) -> Schema:
        schema: Schema = {"type": "object"}
        declared = [name for name in value if self.often(0.9)]
        properties = {name: self.around(value[name], depth + 1) for name in declared}
        for name in NAMES:
            if name not in value and self.often(0.1):
                properties[name] = self.other(depth) if self.often(0.9) else False
        if properties or self.often(0.5):
            schema["properties"] = properties
        if self.often(0.8):
            schema["required"] = [name for name in value if self.often(0.5)]
        rest = [self.around(value[name], depth + 1) for name in value if name not in properties]
        if self.often(0.35):
            schema["additionalProperties"] = (
                False if not rest and self.often(0.7) else self.of_all(rest, depth)
            )
        self.of_names(schema, value, depth)
        return schema

    def of_names(self, schema: Schema, value: dict[str, Any], depth: int) -> None:
        if self.often(0.1):
            schema["minProperties"] = self.rng.randint(0, len(value))
        if self.often(0.1):
            schema["maxProperties"] = len(value) + self.rng.randint(0, 2)
        if self.often(0.05):
            schema["propertyNames"] = {"pattern": "^[a-z_-]+$"}
        matching = [each for name, each in value.items() if name.startswith("x-")]
        if self.often(0.05):
            schema["patternProperties"] = {
                "^x-": self.of_all([self.around(v, depth + 1) for v in matching], depth)
            }
        if value and self.often(0.1):
            schema["dependentRequired"] = {self.rng.choice(NAMES): [self.rng.choice(list(value))]}
        if value and self.often(0.05):
            schema["dependentSchemas"] = {self.rng.choice(list(value)): self.of_object(value, depth + 2)}

    def combine(self, schema: Schema, value: Any, depth: int) -> None:
        """Add one keyword that combines schemas; `value` still satisfies `schema`."""
        own = self.around(value, depth + 1)
        other = self.other(depth)
        match self.rng.randrange(6):
            case 0:
                schema["allOf"] = [own, self.around(value, depth + 1)]
            case 1:
                schema["anyOf"] = self.rng.sample([own, other], 2)
            case 2 if not self.accepts(other, value):
                schema["oneOf"] = self.rng.sample([own, other], 2)
            case 3 if not self.accepts(other, value):
                schema["not"] = other
            case 4:
                schema["if"] = self.rng.choice([own, other])
                holds = self.accepts(schema["if"], value)
                schema["then"] = self.around(value, depth + 1) if holds else self.other(depth)
                schema["else"] = self.other(depth) if holds else self.around(value, depth + 1)
            case _:
                schema["default"] = self.rng.choice([value, None, "none"])

    def accepts(self, schema: Any, value: Any) -> bool:
        return valid({"allOf": [schema], "$defs": self.definitions}, value)
