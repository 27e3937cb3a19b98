"""Random schemas that are known to be satisfiable: each is made around a value that satisfies it."""

from __future__ import annotations

from random import Random
from typing import Any

from jsonschema import Draft202012Validator

Schema = dict[str, Any]

NAMES = ("city", "days", "unit", "user_id", "tags", "limit", "from", "to", "options", "x-note")
STRINGS = ("Lisbon", "red", "two words", "", "a-b-c", "x", "42", "ÅÄÖ")
KINDS: dict[str, tuple[str, str]] = {
    "AB1234": ("pattern", r"^[A-Z]{2}\d{4}$"),
    "north-east": ("pattern", r"^[a-z]+(-[a-z]+)*$"),
    "room 12": ("pattern", r"\d+"),
    "+46 555-0142": ("pattern", r"^(\+\d{1,3} )?\d{3,4}-\d{4}$"),
    "abc123": ("pattern", r"^(?=.*\d)[a-z\d]{6,}$"),
    "#a1b2c3": ("pattern", r"^#?([a-f0-9]{6}|[a-f0-9]{3})$"),
    "2026-03-14": ("format", "date"),
    "2026-03-14T09:30:00Z": ("format", "date-time"),
    "ada@example.com": ("format", "email"),
    "192.0.2.7": ("format", "ipv4"),
    "https://example.com/a": ("format", "uri"),
}
"""Texts, each with a keyword that it satisfies."""
SCALARS = (None, True, False, 0, 1, 7, -3, 12, 250, 10**12, 0.5, -1.25, 3.0, 99.95, 1e6, *STRINGS, *KINDS)
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
    kind = rng.randrange(7)
    if kind < 5 or depth >= MOST_DEPTH:
        return rng.choice(SCALARS)
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
            return {"enum": self.rng.sample([value, *self.rng.sample(SCALARS, 2)], 3)}
        schema: Schema
        if isinstance(value, bool) or value is None:
            schema = {"type": "null" if value is None else "boolean"}
        elif isinstance(value, (list, dict)):
            schema = (self.of_array if isinstance(value, list) else self.of_object)(value, depth)
        else:
            schema = self.of_string(value) if isinstance(value, str) else self.of_number(value)
        if self.often(0.15):
            schema.pop("type", None)
        elif self.often(0.1):
            others = [schema["type"], self.rng.choice(["null", "string", "array"])]
            schema["type"] = list(dict.fromkeys(others))
        return schema

    def some(self, chances: dict[str, tuple[float, Any]]) -> Schema:
        """Keywords with their values, each with its chance."""
        return {name: value for name, (chance, value) in chances.items() if self.often(chance)}

    def of_string(self, value: str) -> Schema:
        keyword, rule = KINDS.get(value, ("minLength", 0))
        bounds = {"minLength": (0.2, self.rng.randint(0, len(value))), "maxLength": (0.2, len(value) + 5)}
        return {"type": "string", **self.some({**bounds, keyword: (0.8, rule)})}

    def of_number(self, value: float) -> Schema:
        away = self.rng.choice([1, 5, 1000])
        schema = self.some(
            {
                "minimum": (0.4, value - away * self.rng.randint(0, 1)),
                "maximum": (0.4, value + away * self.rng.randint(0, 1)),
                "exclusiveMinimum": (0.1, value - away),
                "exclusiveMaximum": (0.1, value + away),
            }
        )
        divisor = self.rng.choice([2, 5, 0.25, 0.05])
        if self.often(0.3) and valid({"multipleOf": divisor}, value):
            schema["multipleOf"] = divisor
        return {"type": "integer" if isinstance(value, int) and self.often(0.8) else "number", **schema}

    def of_array(self, value: list[Any], depth: int) -> Schema:
        schema: Schema = {"type": "array"}
        parts = [self.around(each, depth + 1) for each in value]
        if parts and self.often(0.3):
            split = self.rng.randint(1, len(parts))
            schema["prefixItems"], parts = parts[:split], parts[split:]
        if self.often(0.7):
            schema["items"] = self.of_all(parts, depth)
        schema |= self.some(
            {
                "minItems": (0.3, self.rng.randint(0, len(value))),
                "maxItems": (0.3, len(value) + self.rng.randint(0, 3)),
                "uniqueItems": (0.2, valid({"uniqueItems": True}, value)),
            }
        )
        if value and self.often(0.15):
            schema["contains"] = self.around(self.rng.choice(value), depth + 1)
            schema |= self.some({"maxContains": (0.3, len(value))})
        return schema

    def of_all(self, parts: list[Any], depth: int) -> Any:
        """A schema for values of all `parts`."""
        if not parts:
            return self.other(depth) if self.often(0.8) else False
        return {"anyOf": parts} if len(parts) > 1 else parts[0]

    def of_object(self, value: dict[str, Any], depth: int) -> Schema:
        schema: Schema = {"type": "object"}
        properties = {name: self.around(each, depth + 1) for name, each in value.items() if self.often(0.9)}
        for name in NAMES:
            if name not in value and self.often(0.1):
                properties[name] = self.other(depth) if self.often(0.9) else False
        if properties or self.often(0.5):
            schema["properties"] = properties
        rest = [self.around(value[name], depth + 1) for name in value if name not in properties]
        if self.often(0.35):
            closed = not rest and self.often(0.7)
            schema["additionalProperties"] = False if closed else self.of_all(rest, depth)
        schema |= self.some(
            {
                "required": (0.8, [name for name in value if self.often(0.5)]),
                "minProperties": (0.1, self.rng.randint(0, len(value))),
                "maxProperties": (0.1, len(value) + self.rng.randint(0, 2)),
                "propertyNames": (0.05, {"pattern": "^[a-z_-]+$"}),
            }
        )
        matching = [self.around(each, depth + 1) for name, each in value.items() if name.startswith("x-")]
        if self.often(0.05):
            schema["patternProperties"] = {"^x-": self.of_all(matching, depth)}
        if value and self.often(0.1):
            schema["dependentRequired"] = {self.rng.choice(NAMES): [self.rng.choice(list(value))]}
        if value and self.often(0.05):
            schema["dependentSchemas"] = {self.rng.choice(list(value)): self.of_object(value, depth + 2)}
        return schema

    def combine(self, schema: Schema, value: Any, depth: int) -> None:
        """Add one keyword that combines schemas; `value` still satisfies `schema`."""
        own, other = self.around(value, depth + 1), self.other(depth)
        match self.rng.randrange(5):
            case 0:
                schema["allOf"] = [own, self.around(value, depth + 1)]
            case 1:
                schema["anyOf"] = self.rng.sample([own, other], 2)
            case 2 if not self.accepts(other, value):
                schema["oneOf"] = self.rng.sample([own, other], 2)
            case 3 if not self.accepts(other, value):
                schema["not"] = other
            case _:
                schema["if"] = self.rng.choice([own, other])
                taken, left = ("then", "else") if self.accepts(schema["if"], value) else ("else", "then")
                schema |= {taken: self.around(value, depth + 1), left: self.other(depth)}

    def accepts(self, schema: Any, value: Any) -> bool:
        return valid({"allOf": [schema], "$defs": self.definitions}, value)
