"""Writes structural tags as grammars in the notation of Lark, as llguidance reads them."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Final

from app.extensions.forms.grammar import structural_tags as formats

ANY_TEXT: Final = r"/(.|\n)*/"
SLASH: Final = re.compile(r"\\.|[/\n]", re.DOTALL)
"""Matches characters that a pattern between slashes must escape, and escaped ones."""


class LarkWriter:
    """Writes structural tags as grammars.

    `is_special` returns True for the text of a special token.
    """

    def __init__(self, is_special: Callable[[str], bool]) -> None:
        self._is_special = is_special
        self._rules: list[str] = []

    def write(self, source: str) -> str:
        """Returns the grammar of the structural tag in the JSON `source`.

        Raises:
            ValueError: `source` is not a structural tag.
        """
        start = self._expression(formats.read_structural_tag(source))
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules])

    def _add_rule(self, body: str, attributes: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _expression(self, tag_format: formats.Format) -> str:
        match tag_format:
            case formats.ConstString(value=text) | formats.Token(token=text):
                return self._literal(text)
            case formats.SequenceOf():
                return self._sequence(tag_format)
            case formats.AnyOf(elements=elements):
                return _join_choices(map(self._expression, elements))
            case formats.Tag():
                return self._tag(tag_format)
            case formats.TriggeredTags():
                return self._triggered_tags(tag_format)
            case formats.SeparatedTags():
                return self._separated_tags(tag_format)
            case formats.Star():
                min_count, max_count = tag_format.limits
                limits = f"{min_count},"
                if max_count is not None:
                    limits += str(max_count)
                return f"({self._expression(tag_format.content)}){{{limits}}}"
        return self._content(tag_format)

    def _content(self, tag_format: formats.Content) -> str:
        match tag_format:
            case formats.JsonContent(json_schema=schema):
                return self._add_rule(f"%json {json.dumps(schema)}")
            case formats.RegexContent(pattern=pattern):
                return self._add_rule(f"/{SLASH.sub(_escape, pattern)}/")
            case formats.GrammarContent(grammar=source):
                return self._add_rule(f"%lark {{\n{source}\n}}")
        return self._add_rule(ANY_TEXT)

    def _terminated(self, content: formats.Format, end: str) -> str:
        """Returns `content` followed by the text `end`, at which free text ends."""
        if isinstance(content, formats.AnyText) and end:
            return self._add_rule(ANY_TEXT, f"[suffix={_quote(end)}]")
        return f"{self._expression(content)} {self._literal(end)}"

    def _sequence(self, sequence: formats.SequenceOf) -> str:
        """Returns a sequence, where free text ends at the next literal."""
        parts: list[str] = []
        elements = iter(sequence.elements)
        for element in elements:
            following = None
            if isinstance(element, formats.AnyText):
                following = next(elements, None)
            if isinstance(following, formats.ConstString):
                parts.append(self._terminated(element, following.value))
                continue
            parts.append(self._expression(element))
            if following is not None:
                parts.append(self._expression(following))
        return f"({' '.join(parts)})"

    def _tag(self, tag: formats.Tag, trigger: str = "") -> str:
        """Returns a tag without its trigger, which is already written."""
        opening = tag.begin_text.removeprefix(trigger)
        content = _join_choices(self._terminated(tag.content, end) for end in tag.end_texts)
        if opening:
            return f"({self._literal(opening)} {content})"
        return content

    def _triggered_tags(self, tags: formats.TriggeredTags) -> str:
        choices = []
        for tag in tags.tags:
            trigger = tags.trigger(tag)
            choices.append(f"{self._until(trigger)} {self._tag(tag, trigger)}")
        choice = _join_choices(choices)
        ending = self._add_rule(ANY_TEXT)
        if tags.stop_after_first:
            return choice
        if tags.at_least_one:
            return f"{choice}+ {ending}"
        return f"{choice}* {ending}"

    def _separated_tags(self, tags: formats.SeparatedTags) -> str:
        expression = _join_choices(map(self._tag, tags.tags))
        if not tags.stop_after_first:
            expression = f"({expression} ({self._literal(tags.separator)} {expression})*)"
        if tags.at_least_one:
            return expression
        return f"{expression}?"

    def _until(self, trigger: str) -> str:
        """Returns free text that ends with `trigger`."""
        if self._is_special(trigger):
            return f"{self._add_rule(ANY_TEXT)} {trigger}"
        return self._add_rule(f"{ANY_TEXT} {_quote(trigger)}", "[lazy]")

    def _literal(self, text: str) -> str:
        if self._is_special(text):
            return text
        return _quote(text)


def _escape(match: re.Match[str]) -> str:
    if match[0] == "/":
        return "\\/"
    if match[0].endswith("\n"):
        return "\\n"
    return match[0]


def _join_choices(choices: Iterable[str]) -> str:
    return f"({' | '.join(choices)})"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
