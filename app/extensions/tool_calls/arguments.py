"""Finds the arguments of a tool in a message, as far as its schema allows.

* A field that the message names with a value (`days=3`, `"city": "Rome"`) has that value.
* An enum has the first of its values that the message contains.
* Numbers take the numbers of the message, in order.
* A boolean is true if the message contains the words of its name, and no negation before them.
  Common words and the words of the tool's name do not count.
* A text takes what stands in quotes, then names: runs of capitalized words. An only text that is
  required takes the whole message if it has neither.

Fields of other types and fields without a match are left to the schema.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Final, NamedTuple

from app.core.engine.request import ToolFunction
from app.extensions.tool_calls.argument_types import Properties, properties_of, types_of
from app.extensions.tool_calls.words import COMMON_WORDS, WORD, words_of

MAX_FIELDS = 100
"""Fields of a tool that are compared with the message: the first ones, required ones before."""
MAX_ENUM_CHARACTERS = 20_000
"""Characters of all enums of a tool that are compared with the message."""
VALUE_CHARACTERS = 15
"""Characters that count for each value of an enum, besides its own."""
MAX_NUMBERS = 200
"""Numbers of a message that fields may take: the first ones."""
MAX_NAME = 128
"""Characters of a name of a tool or a field that are compared."""
NUMBER: Final = re.compile(r"(?<![\w.])(?<!\w-)-?[0-9]+(?:\.[0-9]+)?(?!\w|\.\d|-\d)")
"""A number that is not part of a word, a version, a date (`2024-05`) or a code (`A-7`)."""
ASSIGNED: Final = re.compile(
    r"[\"']?(?<![\w.$-])([\w.$-]++)[\"']?\s*+"
    r"(?=([=:]\s*+(?:\"([^\"\n]*)\"|'([^'\n]*)'|([\w.+-]*\w))))"
)
"""A name before an equals sign or a colon, and the value behind it."""
QUOTED: Final = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'(?!\w)|`([^`\n]+)`")
CAPITALIZED: Final = re.compile(
    r"(?<![\w'])[A-Z][\w'-]*(?:(?:,? | (?:of|de|the) )[A-Z][\w'-]*)*(?<!['-])"
)
SENTENCE_ENDS: Final = ".!?:"
PRONOUN: Final = "I"
BOOLEANS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
NEGATIONS: Final = ("no", "non", "not", "without")


class Assignment(NamedTuple):
    """A value that the message gives to a name, and the place of both in the message."""

    value: str
    start: int
    end: int


class MessageValues:
    """The values in a message that no field has taken yet."""

    def __init__(self, message: str, tool_name: str, fields: Iterable[str]) -> None:
        words = words_of(message)
        self.words = frozenset(words)
        self.spoken = f" {' '.join(words)} "
        """The words of the message between blanks."""
        self.enum_characters = MAX_ENUM_CHARACTERS
        """Characters of enums that may still be compared."""
        tool_words = words_of(tool_name[:MAX_NAME])
        self.tool_words = frozenset(tool_words)
        self._assignments = _assignments_in(message, fields)
        free_text = _without(message, self._assignments.values())
        self.numbers = list(islice(_numbers_in(free_text), MAX_NUMBERS))
        self.texts = deque(
            text
            for text in (*quoted_texts(free_text), *capitalized_names(free_text))
            if words_of(text) != tool_words
        )

    def assigned(self, name: str) -> str | None:
        """Returns the value that the message gives to a field."""
        assignment = self._assignments.get(_key(name))
        return None if assignment is None else assignment.value

    def next_number(self, is_integer: bool) -> int | float | None:
        """Takes the next number, or the next integer."""
        for position, number in enumerate(self.numbers):
            if isinstance(number, int) or not is_integer:
                return self.numbers.pop(position)
        return None


def arguments_in(message: str, tool: ToolFunction) -> dict[str, object]:
    """Returns the arguments of the tool that the message contains."""
    properties = properties_of(tool)
    required = required_fields(tool)
    fields = [*dict.fromkeys(chain(required, islice(properties, MAX_FIELDS)))][:MAX_FIELDS]
    values = MessageValues(message, tool.name, fields)
    arguments: dict[str, object] = {}
    for name in fields:
        schema = properties.get(name)
        if isinstance(schema, Mapping):
            value = _value_of(name, schema, values)
            if value is not None:
                arguments[name] = value
    text_field = _only_text(required, properties)
    if text_field is not None and text_field not in arguments:
        arguments[text_field] = message.strip()
    return {name: arguments[name] for name in properties if name in arguments}


def required_fields(tool: ToolFunction) -> list[str]:
    """Returns the names of the parameters that the tool requires, the first ones."""
    if not isinstance(tool.schema, Mapping):
        return []
    required = tool.schema.get("required")
    if not isinstance(required, list):
        return []
    return [name for name in required[:MAX_FIELDS] if isinstance(name, str)]


def _only_text(required: Iterable[str], properties: Properties) -> str | None:
    """Returns the only required text, if no keyword restricts it."""
    texts = [name for name in required if types_of(properties.get(name)) == {"string"}]
    if len(texts) == 1 and _is_free_text(properties.get(texts[0])):
        return texts[0]
    return None


def _value_of(name: str, schema: Mapping[str, object], values: MessageValues) -> object:
    """Returns the value of a field; None without one."""
    enum = schema.get("enum")
    if isinstance(enum, list):
        return _enum_value(enum, values)
    types = types_of(schema)
    assigned = values.assigned(name)
    if types & {"integer", "number"}:
        is_integer = "number" not in types
        if assigned is not None and NUMBER.fullmatch(assigned):
            return _number(assigned, is_integer)
        return values.next_number(is_integer)
    if "boolean" in types:
        return _boolean(name, assigned, values)
    if "string" in types and _is_free_text(schema):
        if assigned is not None:
            return assigned
        return values.texts.popleft() if values.texts else None
    return None


def _enum_value(enum: list[object], values: MessageValues) -> object:
    """Returns the value whose words the message contains first."""
    first_value: object = None
    first_position = len(values.spoken)
    for value in enum:
        text = str(value) if isinstance(value, str | int | float) else ""
        values.enum_characters -= VALUE_CHARACTERS + len(text)
        if values.enum_characters < 0:
            break
        first_word = WORD.search(text)
        if first_word is None or first_word[0].lower() not in values.words:
            continue
        position = values.spoken.find(f" {' '.join(words_of(text))} ")
        if 0 <= position < first_position:
            first_position = position
            first_value = value
    return first_value


def _boolean(name: str, assigned: str | None, values: MessageValues) -> bool | None:
    """Returns the value of a field in the message; None without one, or behind a negation."""
    if assigned is not None and assigned.lower() in BOOLEANS:
        return BOOLEANS[assigned.lower()]
    words = [
        word
        for word in words_of(name[:MAX_NAME])
        if word not in COMMON_WORDS and word not in values.tool_words
    ]
    if not words or not values.words.issuperset(words):
        return None
    if any(f" {negation} {words[0]} " in values.spoken for negation in NEGATIONS):
        return None
    return True


def _number(text: str, is_integer: bool) -> int | float | None:
    """Returns the value of a text; None for one that is too large, or has a fraction."""
    if "." not in text:
        return int(text)
    number = float(text)
    if is_integer or not math.isfinite(number):
        return None
    return number


def _numbers_in(message: str) -> Iterable[int | float]:
    for match in NUMBER.finditer(message):
        number = _number(match[0], is_integer=False)
        if number is not None:
            yield number


def _key(name: str) -> str:
    """Returns a name without case and punctuation, for comparisons."""
    return name[:MAX_NAME].strip("-.").lower()


def _assignments_in(message: str, fields: Iterable[str]) -> dict[str, Assignment]:
    """Returns the first value of each field that the message names with a value."""
    keys = set(map(_key, fields))
    assignments: dict[str, Assignment] = {}
    for match in ASSIGNED.finditer(message):
        key = _key(match[1])
        if key in keys and key not in assignments:
            value = next(value for value in match.groups()[2:] if value is not None)
            assignments[key] = Assignment(value, match.start(), match.end(2))
    return assignments


def _without(message: str, assignments: Iterable[Assignment]) -> str:
    """Returns the message with a comma in the place of each assignment."""
    parts: list[str] = []
    position = 0
    places = sorted((assignment.start, assignment.end) for assignment in assignments)
    for start, end in places:
        parts.append(message[position:start])
        position = max(position, end)
    return ", ".join([*parts, message[position:]])


def _is_free_text(schema: object) -> bool:
    """Returns whether no keyword of a schema restricts its texts."""
    return isinstance(schema, Mapping) and not {"enum", "const", "pattern", "format"} & set(schema)


def quoted_texts(message: str) -> list[str]:
    """Returns the texts in quotes."""
    return [next(filter(None, match.groups())) for match in QUOTED.finditer(message)]


def capitalized_names(message: str) -> list[str]:
    """Returns runs of capitalized words, without a single word that begins a sentence."""
    unquoted = QUOTED.sub(", ", message)
    names: list[str] = []
    for match in CAPITALIZED.finditer(unquoted):
        name = match[0]
        if _begins_sentence(unquoted, match.start()):
            _, _, name = name.partition(" ")
        if name and name != PRONOUN:
            names.append(name)
    return names


def _begins_sentence(text: str, start: int) -> bool:
    """Returns whether only blanks are between `start` and the end of a sentence or a line."""
    position = start
    while position and text[position - 1].isspace():
        position -= 1
        if text[position] == "\n":
            return True
    return position == 0 or position < start and text[position - 1] in SENTENCE_ENDS
