"""Writes structural tags as grammars in the notation of Lark, as llguidance reads them."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Final

from app.engine.forms.grammar import structural_tags as formats

TEXT: Final = r"/(.|\n)*/"
SLASH: Final = re.compile(r"\\.|[/\n]", re.DOTALL)
"""Matches characters that a pattern between slashes must escape, and escaped ones."""
ESCAPED: Final = {"/": "\\/", "\n": "\\n"}


class LarkWriter:
    """Writes structural tags as grammars; `is_special` returns True for the text of a special
    token.
    """

    def __init__(self, is_special: Callable[[str], bool]) -> None:
        self._is_special = is_special
        self._rules: list[str] = []

    def grammar(self, source: str) -> str:
        """Returns the grammar of a structural tag in JSON. Raises ValueError for anything else."""
        found = formats.read_structural_tag(source)
        return "\n".join(["%llguidance {}", f"start: {self._expression(found)}", *self._rules])

    def _rule(self, body: str, attributes: str = "") -> str:
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
                escaped = SLASH.sub(
                    lambda it: ESCAPED.get(it[0], it[0].replace("\n", "\\n")), pattern
                )
                return self._rule(f"/{escaped}/")
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
            case formats.SeparatedTags(separator=separator):
                tag = _either(map(self._tag, found.tags))
                several = (
                    tag
                    if found.stop_after_first
                    else f"({tag} ({self._literal(separator)} {tag})*)"
                )
                return several if found.at_least_one else f"{several}?"
        least, most = found.limits
        return f"({self._expression(found.content)}){{{least},{'' if most is None else most}}}"

    def _ended(self, content: formats.Format, end: str) -> str:
        """Returns `content` followed by the text `end`, at which free text ends."""
        if isinstance(content, formats.AnyText) and end:
            return self._rule(TEXT, f"[suffix={_quoted(end)}]")
        return f"{self._expression(content)} {self._literal(end)}"

    def _sequence(self, found: formats.SequenceOf) -> str:
        """Returns a sequence, where free text ends at the next literal."""
        parts, elements = [], iter(found.elements)
        for element in elements:
            following = next(elements, None) if isinstance(element, formats.AnyText) else None
            if isinstance(following, formats.ConstString):
                parts.append(self._ended(element, following.value))
            else:
                parts += [
                    self._expression(each) for each in (element, following) if each is not None
                ]
        return f"({' '.join(parts)})"

    def _tag(self, found: formats.Tag, trigger: str = "") -> str:
        """Returns a tag without its trigger, which is already written."""
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

    def _until(self, trigger: str) -> str:
        if self._is_special(trigger):
            return f"{self._rule(TEXT)} {trigger}"
        return self._rule(f"{TEXT} {_quoted(trigger)}", "[lazy]")

    def _literal(self, text: str) -> str:
        return text if self._is_special(text) else _quoted(text)


def _either(choices: Iterable[str]) -> str:
    return f"({' | '.join(choices)})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
