"""Writes structural tags as grammars of llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final

from app.grammar import tag_formats as formats

TEXT: Final = r"/(.|\n)*/"


def structural_tag_grammar(source: str, is_special: Callable[[str], bool]) -> str:
    """Returns the grammar of a structural tag, which is JSON. Raises ValueError for anything else.

    `is_special` returns True for texts that are tokens of their own.
    """
    return _LarkWriter(is_special).grammar(formats.read_structural_tag(source))


class _LarkWriter:
    def __init__(self, is_special: Callable[[str], bool]) -> None:
        self._is_special = is_special
        self._rules: list[str] = []

    def grammar(self, found: formats.Format) -> str:
        return "\n".join(["%llguidance {}", f"start: {self._expression(found)}", *self._rules])

    def _rule(self, body: str, attributes: str = "") -> str:
        """Adds a rule and returns its name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _expression(self, found: formats.Format) -> str:
        match found:
            case formats.ConstString(value=text) | formats.Token(token=text):
                return self._literal(text)
            case formats.JsonContent(json_schema=schema):
                return self._rule(f"%json {json.dumps(schema)}")
            case formats.RegexContent(pattern=pattern):
                return self._rule(f"/{_slashed(pattern)}/")
            case formats.GrammarContent(grammar=source):
                return self._rule(f"%lark {{\n{source}\n}}")
            case formats.AnyText():
                return self._rule(TEXT)
            case formats.SequenceOf():
                return self._sequence(found)
            case formats.AnyOf(elements=elements):
                return _either(map(self._expression, elements))
            case formats.Tag():
                return self._tag(found)
            case formats.TriggeredTags():
                return self._triggered(found)
            case formats.SeparatedTags():
                return self._separated(found)
        least, most = found.limits
        return f"({self._expression(found.content)}){{{least},{'' if most is None else most}}}"

    def _ended(self, content: formats.Format, end: str) -> str:
        """Returns `content` and the text behind it, where text of any kind ends."""
        if isinstance(content, formats.AnyText) and end:
            return self._rule(TEXT, f"[suffix={_quoted(end)}]")
        return f"{self._expression(content)} {self._literal(end)}"

    def _sequence(self, found: formats.SequenceOf) -> str:
        """Text of any kind ends where a literal that follows begins."""
        parts, elements = [], iter(found.elements)
        for element in elements:
            following = next(elements, None) if isinstance(element, formats.AnyText) else None
            if isinstance(following, formats.ConstString):
                parts.append(self._ended(element, following.value))
            else:
                parts += [self._expression(each) for each in (element, following) if each is not None]
        return f"({' '.join(parts)})"

    def _tag(self, found: formats.Tag, trigger: str = "") -> str:
        """Returns a tag without its trigger, which has come already."""
        begin = found.begin_text.removeprefix(trigger)
        content = _either(self._ended(found.content, end) for end in found.end_texts)
        return f"({self._literal(begin)} {content})" if begin else content

    def _triggered(self, found: formats.TriggeredTags) -> str:
        begun = ((tag, found.trigger(tag)) for tag in found.tags)
        one = _either(f"{self._until(trigger)} {self._tag(tag, trigger)}" for tag, trigger in begun)
        rest = self._rule(TEXT)
        if found.stop_after_first:
            return one
        return f"{one}{'+' if found.at_least_one else '*'} {rest}"

    def _separated(self, found: formats.SeparatedTags) -> str:
        tag = _either(map(self._tag, found.tags))
        several = tag if found.stop_after_first else f"({tag} ({self._literal(found.separator)} {tag})*)"
        return several if found.at_least_one else f"{several}?"

    def _until(self, trigger: str) -> str:
        """Returns text of any kind and the trigger behind it."""
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
    """Returns a pattern as it is written between slashes."""
    escaped, kept = False, []
    for character in pattern:
        kept.append("\\/" if character == "/" and not escaped else character)
        escaped = character == "\\" and not escaped
    return "".join(kept).replace("\n", "\\n")
