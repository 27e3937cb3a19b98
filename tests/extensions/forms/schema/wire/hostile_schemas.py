"""Schemas that ask for too much. Making them takes a tenth of a second, so import them in tests."""

from collections.abc import Callable
from typing import Any

MANY = 10**9
MANY_TOOLS = [{"type": "object", "properties": {f"p{n}": {"type": "string"}}} for n in range(5_000)]


def nested(levels: int, keyword: str) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = (
            {keyword: {"a": schema}, "required": ["a"]}
            if keyword == "properties"
            else {keyword: schema}
        )
    return schema


def doubled(levels: int, keyword: str) -> Any:
    """References that unfold to 2 ** `levels` schemas."""
    schemas = {f"s{n}": {keyword: [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/s0", "$defs": {**schemas, f"s{levels}": {"type": "string"}}}


def required_twice(levels: int) -> Any:
    """References that unfold to 2 ** `levels` values."""
    schemas: dict[str, Any] = {}
    for n in range(levels):
        part = {"$ref": f"#/$defs/s{n + 1}"}
        schemas[f"s{n}"] = {
            "type": "object",
            "properties": {"x": part, "y": part},
            "required": ["x", "y"],
        }
    return {"$ref": "#/$defs/s0", "$defs": {**schemas, f"s{levels}": {"type": "string"}}}


def pigeons(count: int) -> Any:
    """`count` properties with different values out of one fewer."""
    names = [f"p{n}" for n in range(count)]
    same = [
        {"not": {"properties": {a: {"const": v}, b: {"const": v}}, "required": [a, b]}}
        for v in range(count - 1)
        for n, a in enumerate(names)
        for b in names[:n]
    ]
    values = {"enum": list(range(count - 1))}
    return {
        "type": "object",
        "properties": dict.fromkeys(names, values),
        "required": names,
        "allOf": same,
    }


def chain(count: int, link: Callable[[int], Any]) -> dict[str, Any]:
    return {f"s{n}": link(n + 1) for n in range(count)} | {f"s{count}": {}}


def refer(n: int) -> Any:
    return {"$ref": f"#/$defs/s{n}"}


def deep_list(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


LONG = {"type": "array", "minItems": 50}
INTEGERS = [{"type": "integer", "minimum": n} for n in range(3000)]
PLENTY = [f"p{n}" for n in range(300_000)]
NEXT = [[name] for name in PLENTY[1:3001]]
REFERENCES = {name: {"$ref": f"#{name}"} for name in PLENTY[:1000]}
HOSTILE: dict[str, Any] = {
    "deep objects": nested(300, "properties"), "deep not": nested(400, "not"),
    "deep items": nested(70, "items"), "values doubled": required_twice(40), "pigeons": pigeons(8),
    "deep const": {"const": deep_list(400)}, "very deep const": {"const": deep_list(900)},
    "allOf doubled": doubled(40, "allOf"), "oneOf doubled": doubled(40, "oneOf"),
    "long chain of references": {"$ref": "#/$defs/s0", "$defs": chain(900, refer)},
    "many references": {"$ref": "#/$defs/s0", "$defs": chain(2400, lambda n: {"items": refer(n * 7 % 2400)})},
    "minItems": {"type": "array", "minItems": MANY},
    "minItems as a float": {"type": "array", "minItems": 1e300},
    "minContains": {"type": "array", "contains": {}, "minContains": MANY},
    "minLength": {"type": "string", "minLength": MANY},
    "minProperties": {"type": "object", "minProperties": MANY},
    "many unique items": {"type": "array", "items": {"type": "integer"},
        "uniqueItems": True, "minItems": 4000},
    "many objects": {"type": "array", "items": required_twice(0) | {"$ref": "#/$defs/s0"}, "minItems": 4000},
    "nested arrays": LONG | {"items": LONG | {"items": LONG}},
    "backtracking on a const": {"const": "a" * 40 + "!", "pattern": "^(a|a|a)*$"},
    "backtracking on a name": {
        "type": "object", "required": ["a" * 50 + "!"], "patternProperties": {"^(a|a|a)*$": {}}
    },
    "backtracking on every option": {"enum": [f"{'a' * 3000}{n}" for n in range(100)],
        "pattern": "(.*)(.*)(.*)x$"},
    "nested quantifiers": {"type": "string", "pattern": "(a+)+$", "minLength": 30},
    "many patterns": {"patternProperties": {f"^{n}.*a.*b": {} for n in range(2000)}, "minProperties": 20},
    "giant multipleOf": {"type": "integer", "multipleOf": 10**4000, "minimum": 1},
    "tiny multipleOf": {"type": "number", "multipleOf": 5e-324, "minimum": 1e300},
    "many multipleOf": {"allOf": [{"multipleOf": 10**15 + n} for n in range(1500)], "minimum": 1},
    "too large for text": {"type": "number", "minimum": 10**5000},
    "no room between": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 5e-324},
    "many anyOf": {"anyOf": [{"type": "integer", "minimum": n + 1, "maximum": n} for n in range(3000)]},
    "many overlapping oneOf": {"oneOf": INTEGERS[:500]},
    "long text in many branches": {"const": ["x" * 200_000], "anyOf": INTEGERS[:2000]},
    "anyOf everywhere": {"type": "array", "items": {"anyOf": INTEGERS}, "minItems": 4000},
    "large enum": {"enum": list(range(60_000)), "type": "string"},
    "large enum of objects": {"enum": [{"a": n} for n in range(35_000)]},
    "two large enums": {"allOf": [{"enum": list(range(30_000))}, {"enum": list(range(5, 30_000))}]},
    "long const": {"const": list(range(70_000)), "uniqueItems": True},
    "many required": {"type": "object", "required": PLENTY[:20_000]},
    "many properties": {"properties": dict.fromkeys(PLENTY, {})},
    "required everywhere": {"type": "array", "items": {"type": "object", "required": PLENTY[:20_000]},
        "minItems": 4000},
    "not many properties": {"not": {"properties": dict.fromkeys(PLENTY[:4000], {"type": "string"})}},
    "chain of dependencies": {"required": ["p0"], "dependentRequired": dict(zip(PLENTY, NEXT, strict=False))},
    "chain of dependent schemas": {"dependentSchemas": {f"p{n}": {"required": NEXT[n]} for n in range(300)}},
    "many anchors": {"properties": REFERENCES, "$defs": {f"s{n}": {"$anchor": f"p{n}"} for n in range(1000)}},
    "anchors that are missing": {"properties": REFERENCES},
    "long pointers": {"properties": {f"p{n}": {"$ref": "#" + "/properties" * 3000} for n in range(20)}},
    "long names": {"properties": {"x" * 100_000: {"properties": dict.fromkeys(PLENTY[:3000], {})}}},
    "a long word as a pattern": {"type": "string", "pattern": "ab" * 1900},
    "a long pattern": {"type": "string", "pattern": "|".join(f"[a-z{n}]{{5}}" for n in range(300))},
    "large": {"description": "x" * 2_000_000}, "half a character": {"type": "string", "pattern": "\\ud800"},
    "names that no file has": {"$id": "http://[::1", "properties": {"a": {"$ref": "b"}}},
}  # fmt: skip
