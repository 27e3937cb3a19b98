"""Structural tags: text around tags, each with content of its own format. As JSON, in the words of xgrammar.

``{"type": "structural_tag", "format": ...}``, or the older ``{"structures": [...], "triggers": [...]}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.grammar.nodes import SPEECH, Either, Json, Many, Match, Node, Rule, Run, Text
from app.schema import Schemas
from app.schema.errors import SchemaError
from app.schema.patterns import Pattern

ROOT = ""
"""No rule of a grammar in a tag has this name."""
DEEPEST = 60
"""Formats in one another."""
Format = Mapping[str, object]
GrammarReader = Callable[[str], tuple[dict[str, Node], str]]
"""The rules of a grammar, and its root."""


class TagReader:
    """Makes rules of one structural tag."""

    def __init__(self, schemas: Schemas, read_grammar: GrammarReader) -> None:
        self._schemas = schemas
        self._read_grammar = read_grammar
        self._rules: dict[str, Node] = {}
        self._readers: dict[str, Callable[[Format, int], Node]] = {
            "const_string": lambda found, _: Text(_text(found, "value")),
            "json_schema": lambda found, _: self._json(found),
            "any_text": lambda found, _: SPEECH,
            "any_tokens": lambda found, _: SPEECH,
            "token": lambda found, _: Text(_text(found, "token")),
            "regex": lambda found, _: Match(Pattern(_text(found, "pattern"))),
            "grammar": lambda found, _: self._grammar(_text(found, "grammar")),
            "sequence": lambda found, depth: Run(self._all(found, "elements", depth)),
            "or": lambda found, depth: Either(self._all(found, "elements", depth)),
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
            "optional": lambda found, depth: Many(self._content(found, depth), 0, 1),
            "star": lambda found, depth: Many(self._content(found, depth)),
            "plus": lambda found, depth: Many(self._content(found, depth), 1),
            "repeat": self._repeated,
        }

    def rules(self, tag: object) -> dict[str, Node]:
        """The rules, of which `ROOT` derives the whole text. SchemaError for what is no structural tag."""
        if not isinstance(tag, Mapping):
            raise SchemaError("a structural tag is an object")
        self._rules[ROOT] = self._legacy(tag) if "structures" in tag else self._format(tag.get("format"), 0)
        return self._rules

    def _legacy(self, tag: Format) -> Node:
        tags = [
            {"begin": _text(item, "begin"), "end": _text(item, "end"), "content": _schema(item)}
            for item in _objects(tag, "structures")
        ]
        return self._triggered({"triggers": tag.get("triggers"), "tags": tags}, 0)

    def _format(self, found: object, depth: int) -> Node:
        if depth > DEEPEST:
            raise SchemaError("too many formats in one another")
        if not isinstance(found, Mapping):
            raise SchemaError("a format is an object")
        kind = found.get("type")
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise SchemaError(f"there is no format {str(kind)[:40]!r}; there are {', '.join(self._readers)}")
        return reader(found, depth + 1)

    def _all(self, found: Format, name: str, depth: int) -> list[Node]:
        formats = [self._format(each, depth) for each in _objects(found, name)]
        if not formats:
            raise SchemaError(f"{name} must not be empty")
        return formats

    def _content(self, found: Format, depth: int) -> Node:
        return self._format(found.get("content"), depth)

    def _json(self, found: Format) -> Node:
        if found.get("style", "json") != "json":
            raise SchemaError("only JSON of the style json can be written")
        schema = found.get("json_schema")
        if not isinstance(schema, bool | Mapping):
            raise SchemaError("json_schema is a schema")
        return Json(self._schemas.compile(schema))

    def _grammar(self, source: str) -> Node:
        """A grammar of its own: its rules get a name in front of theirs."""
        rules, root = self._read_grammar(source)
        space = f"{len(self._rules)}:"
        renamed = _Renamed(space)
        self._rules |= {space + name: renamed.of(node) for name, node in rules.items()}
        return Rule(space + root)

    def _tag(self, found: Format, depth: int) -> Node:
        end = found.get("end")
        ends = end if isinstance(end, list) else [end]
        if not ends:
            raise SchemaError("a tag has an end")
        closing: list[Node] = [Text(_mark(each, "end")) for each in ends]
        return Run([Text(_mark(found.get("begin"), "begin")), self._content(found, depth), _either(closing)])

    def _tags(self, found: Format, depth: int) -> Node:
        tags = [self._tag(each, depth + 1) for each in _objects(found, "tags")]
        if not tags:
            raise SchemaError("tags must not be empty")
        return _either(tags)

    def _triggered(self, found: Format, depth: int) -> Node:
        """Text, and tags in it: always one, for who asks for tags wants to see some."""
        triggers = found.get("triggers")
        if not isinstance(triggers, list) or not all(isinstance(each, str) and each for each in triggers):
            raise SchemaError("triggers is a list of texts")
        for each in _objects(found, "tags"):
            begin = _mark(each.get("begin"), "begin")
            if not any(begin.startswith(trigger) for trigger in triggers):
                raise SchemaError(f"no trigger begins the tag {begin[:40]!r}")
        tag = self._tags(found, depth)
        before: list[Node] = [] if found.get("at_least_one") else [SPEECH]
        if found.get("stop_after_first"):
            return Run([*before, tag])
        return Run([*before, tag, Many(Run([SPEECH, tag])), SPEECH])

    def _separated(self, found: Format, depth: int) -> Node:
        tag, separator = self._tags(found, depth), Text(_text(found, "separator"))
        return tag if found.get("stop_after_first") else Run([tag, Many(Run([separator, tag]))])

    def _repeated(self, found: Format, depth: int) -> Node:
        least, most = found.get("min"), found.get("max")
        if not isinstance(least, int) or not isinstance(most, int) or not 0 <= least <= max(most, least):
            raise SchemaError("repeat has a min and a max")
        return Many(self._content(found, depth), least, None if most < 0 else max(most, least))


class _Renamed:
    """Nodes of a grammar whose rules have `space` in front of their names. What is shared stays so."""

    def __init__(self, space: str) -> None:
        self._space = space
        self._made: dict[int, Node] = {}

    def of(self, node: Node) -> Node:
        if id(node) not in self._made:
            self._made[id(node)] = self._of(node)
        return self._made[id(node)]

    def _of(self, node: Node) -> Node:
        match node:
            case Rule(name):
                return Rule(self._space + name)
            case Run(items):
                return Run(list(map(self.of, items)))
            case Either(options):
                return Either(list(map(self.of, options)))
            case Many(item, least, most):
                return Many(self.of(item), least, most)
        return node


def _either(nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else Either(nodes)


def _text(found: Format, name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise SchemaError(f"{name} is a text")
    return value


def _mark(value: object, name: str) -> str:
    """The begin or end of a tag: a text, or a token that is named by its text."""
    if isinstance(value, Mapping):
        return _text(value, "token")
    return _text({name: value}, name)


def _schema(item: Format) -> Format:
    schema = item.get("schema")
    return {"type": "json_schema", "json_schema": True if schema is None else schema}


def _objects(found: Format, name: str) -> Sequence[Format]:
    values = found.get(name)
    if not isinstance(values, list) or not all(isinstance(each, Mapping) for each in values):
        raise SchemaError(f"{name} is a list of objects")
    return values
