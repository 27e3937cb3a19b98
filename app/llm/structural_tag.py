"""Structural tags, texts around tags with content of their own format, as grammars of llguidance.

They come in the words of xgrammar, as vLLM takes them: `{"type": "structural_tag", "format": ...}`, or the
older `{"structures": [...], "triggers": [...]}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from app.llm.errors import RequestError

DEEPEST: Final = 40
"""Formats in one another."""
TEXT: Final = r"/(.|\n)*/"


def lark_of(tag: object, is_special: Callable[[str], bool]) -> str:
    """A grammar; `is_special` says which texts are tokens of their own. RequestError for what is no tag."""
    if not isinstance(tag, Mapping):
        raise RequestError("A structural tag is an object.")
    return _Writer(is_special).grammar(_modern(tag) if "structures" in tag else tag.get("format"))


def _modern(tag: Mapping[str, object]) -> object:
    """The older notation in the words of the newer."""
    tags = [
        {
            "begin": each.get("begin"),
            "content": {"type": "json_schema", "json_schema": each.get("schema", True)},
            "end": each.get("end"),
        }
        for each in _objects(tag, "structures")
    ]
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


class _Writer:
    """Writes the rules of one grammar."""

    def __init__(self, is_special: Callable[[str], bool]) -> None:
        self._is_special = is_special
        self._rules: list[str] = []

    def grammar(self, found: object) -> str:
        return "\n".join(["%llguidance {}", f"start: {self._format(found, 0)}", *self._rules])

    def _rule(self, body: str, attributes: str = "") -> str:
        """The name of a new rule."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _format(self, found: object, depth: int, end: str | None = None) -> str:
        """An expression; text of any kind goes on until `end`, which it then includes."""
        if depth > DEEPEST:
            raise RequestError("A structural tag has too many formats in one another.")
        if not isinstance(found, Mapping):
            raise RequestError("A format of a structural tag is an object.")
        expression = self._of_kind(found, depth + 1, end)
        open_ended = end is not None and found.get("type") != "any_text"
        return f"{expression} {self._literal(end or '')}" if open_ended else expression

    def _of_kind(self, found: Mapping[str, object], depth: int, end: str | None) -> str:
        match found.get("type"):
            case "const_string":
                return self._literal(_text(found, "value"))
            case "json_schema":
                return self._rule(f"%json {json.dumps(found.get('json_schema', True))}")
            case "regex":
                return self._rule(f"/{_slashed(_text(found, 'pattern'))}/")
            case "grammar":
                return self._rule(f"%lark {{\n{_text(found, 'grammar')}\n}}")
            case "any_text":
                return self._rule(TEXT) if not end else self._rule(TEXT, f"[suffix={_quoted(end)}]")
            case "sequence":
                return self._sequence(found, depth)
            case "or":
                return _either(self._format(it, depth) for it in _objects(found, "elements"))
            case "tag":
                return self._tag(found, depth)
            case "triggered_tags":
                return self._triggered(found, depth)
            case kind:
                raise RequestError(f"The format {str(kind)[:40]!r} of a structural tag is not supported.")

    def _sequence(self, found: Mapping[str, object], depth: int) -> str:
        """Text of any kind ends where a literal that follows begins."""
        parts, elements = [], _objects(found, "elements")
        place = 0
        while place < len(elements):
            follows = elements[place + 1] if place + 1 < len(elements) else {}
            literal = follows.get("type") == "const_string" and elements[place].get("type") == "any_text"
            end = _text(follows, "value") if literal else None
            parts.append(self._format(elements[place], depth, end))
            place += 2 if literal else 1
        return f"({' '.join(parts)})"

    def _tag(self, found: Mapping[str, object], depth: int, trigger: str = "") -> str:
        """Without the trigger, which has come already."""
        begin, end = _text(found, "begin").removeprefix(trigger), _text(found, "end")
        content = self._format(found.get("content"), depth, end or None)
        return f"({self._literal(begin)} {content})" if begin else f"({content})"

    def _triggered(self, found: Mapping[str, object], depth: int) -> str:
        """Any text, in which a trigger begins a tag."""
        triggers, tags = found.get("triggers"), _objects(found, "tags")
        if not isinstance(triggers, list) or not all(isinstance(it, str) and it for it in triggers):
            raise RequestError("The triggers of a structural tag are texts.")
        choices = []
        for tag in tags:
            begin = _text(tag, "begin")
            trigger = next((it for it in triggers if begin.startswith(it)), None)
            if trigger is None:
                raise RequestError(f"No trigger begins the tag {begin[:40]!r}.")
            choices.append(f"{self._until(trigger)} {self._tag(tag, depth, trigger)}")
        one, rest = _either(choices), self._rule(TEXT)
        if found.get("stop_after_first"):
            return one
        return f"{one}{'+' if found.get('at_least_one') else '*'} {rest}"

    def _until(self, trigger: str) -> str:
        """Any text, and the trigger behind it."""
        if self._is_special(trigger):
            return f"{self._rule(TEXT)} {trigger}"
        return self._rule(f"{TEXT} {_quoted(trigger)}", "[lazy]")

    def _literal(self, text: str) -> str:
        return text if self._is_special(text) else _quoted(text)


def _either(choices: Iterable[str]) -> str:
    return f"({' | '.join(choices)})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _slashed(pattern: str) -> str:
    """A pattern between slashes."""
    escaped, kept = False, []
    for character in pattern:
        kept.append("\\/" if character == "/" and not escaped else character)
        escaped = character == "\\" and not escaped
    return "".join(kept).replace("\n", "\\n")


def _text(found: Mapping[str, object], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{name} of a structural tag is a text.")
    return value


def _objects(found: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    value = found.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(it, Mapping) for it in value):
        raise RequestError(f"{name} of a structural tag is a list of objects.")
    return value
