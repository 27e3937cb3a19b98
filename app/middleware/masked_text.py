"""A body as a log may show it: whatever fields with a secret name hold is replaced, and so are bearer keys.

It need not be valid JSON, and may be cut anywhere. It may be long, and made to take long: it is gone through
in slices, and no pattern is let loose on more than a piece where it could step back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec

from app.clock.pause import Slices
from app.middleware.masking import MASK, is_secret, may_be_secret

PIECE = 1 << 13
"""Characters that are searched in one go."""
SLICE = 12_000
"""Values between two pauses: about 4 ms."""
CHARS = 16
"""Characters that count as one value looked at."""
LOOK = 8
"""Values that a string counts as which is looked at."""
DEEPEST = 4
"""JSON in a text in JSON, as arguments of tool calls are: so many times are looked into."""

_NAMED = re.compile(r'"\s*+(?::|\Z)')
"""The end of a string before a colon, or before the end of a piece."""
_COLON = re.compile(r"\s*+:\s*+")
_INSIDE = re.compile(r'(?:[^"\\]++|\\(?:u[0-9a-fA-F]{4}|[^u]))*+', re.S)
"""What may be in a string: no half of an escape."""
_PART = re.compile(r'["\[\]{}]')
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_MAY_HIDE = re.compile('"|[bB]earer|BEARER')
_SCHEMA = re.compile(
    r'\{\s*+(?:\}|"(?:\$\w++|anyOf|oneOf|allOf|enum|const|title|description|default|format|items|properties)"'
    r'|"type"\s*+:\s*+(?:\[|"(?:string|number|integer|boolean|array|object|null)"))'
)
"""The beginning of what a JSON Schema says of a field: no secret."""
_LOGPROB = re.compile(r'\s*+,\s*+"(?:logprob|bytes)"')
"""What follows the `token` of a log probability, which is no secret."""
_BEARER = re.compile(r"[bB][eE][aA][rR][eE][rR](?=\s)")
_BEARER_KEY = re.compile(r"\s++[\w.~+/=-]++")
_LOOSE_VALUE = re.compile(rf'(\\*+"\s*+:\s*+\\*+")(?!{re.escape(MASK)}")([^"]*+)')
"""Of quotation marks behind a backslash nobody knows what they begin."""
_strings = json.JSONDecoder(strict=False)

Replacement = tuple[int, int, str]
"""What is to be replaced, from where to where, and by what."""


def mask_text(text: str, within: Slices | None = None, depth: int = DEEPEST) -> str:
    """`text` without its secrets. Numbers stay, and what a schema says of a field."""
    return _masked(text, [], within or Slices(SLICE), depth)[0]


def mask_pieces(pieces: Sequence[str], within: Slices | None = None) -> list[str]:
    """`mask_text` of a text in pieces; what stands for a secret is in the piece where the secret began."""
    text, ends = "".join(pieces), list(accumulate(map(len, pieces)))
    masked, ends = _masked(text, ends, within or Slices(SLICE), DEEPEST)
    return [masked[start:end] for start, end in pairwise([0, *ends])]


def _masked(text: str, cuts: list[int], within: Slices, depth: int) -> tuple[str, list[int]]:
    """`text` without its secrets, and where its `cuts` (ascending) are then."""
    masked, cuts = _replaced(text, _fields(text, depth, within), cuts)
    masked, cuts = _replaced(masked, _bearer_keys(masked, within), cuts)
    return (masked, cuts) if _is_json(text) else _replaced(masked, _loose_fields(masked, within), cuts)


def _replaced(text: str, replacements: Iterator[Replacement], cuts: list[int]) -> tuple[str, list[int]]:
    pieces: list[str] = []
    moved: list[int] = []
    done = shift = 0
    for start, end, instead in replacements:
        pieces += text[done:start], instead
        while len(moved) < len(cuts) and (cut := cuts[len(moved)]) < end:
            moved.append(cut + shift if cut <= start else start + shift + len(instead))
        done, shift = end, shift + len(instead) - (end - start)
    moved += [cut + shift for cut in cuts[len(moved) :]]
    return ("".join([*pieces, text[done:]]) if pieces else text), moved


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _fields(text: str, depth: int, within: Slices) -> Iterator[Replacement]:
    """Values of fields with a secret name, and texts that hide such fields."""
    suspects, at = _Suspects(text, within), 0
    while (start := suspects.behind(at)) is not None:
        string, end = _string(text, start + 1, within)
        colon = _COLON.match(text, end)
        if colon is None:
            at = end
            if depth and _MAY_HIDE.search(string):
                masked = mask_text(string, within, depth - 1)
                if masked != string:
                    yield start, end, json.dumps(masked, ensure_ascii=False)
        elif is_secret(string):
            at = _end_of_value(text, colon.end(), within)
            if at > colon.end() and not (string == "token" and _LOGPROB.match(text, at)):
                yield colon.end(), at, f'"{MASK}"'
        else:
            at = colon.end()


class _Suspects:
    """Finds strings that have an escape, which may hide anything, or a name that may be a secret's."""

    def __init__(self, text: str, within: Slices) -> None:
        self._text = text
        self._within = within
        self._escape = self._named = -1
        """The next backslash, and the next end of a name; the length of the text when there is none."""

    def behind(self, at: int) -> int | None:
        """Where the first one behind `at` begins. Ask for one after the other."""
        text = self._text
        while True:
            self._within.spend(LOOK)
            if self._escape < at:
                self._escape = _find(text, "\\", at)
            if self._named < at:
                self._named = _name_end(text, at, self._within)
            escape, named = self._escape, self._named
            if escape < named:
                if (start := text.rfind('"', at, escape)) >= 0:
                    return start
                at = _find(text, '"', escape)
            elif named == len(text):
                return None
            else:
                start = text.rfind('"', at, named)
                if start >= 0 and may_be_secret(text, start + 1, named):
                    return start
                at, self._named = named, _name_end(text, named + 1, self._within)


def _find(text: str, sign: str, at: int) -> int:
    """Where `sign` is; the length of `text` when it is not."""
    found = text.find(sign, at)
    return len(text) if found < 0 else found


def _name_end(text: str, at: int, within: Slices) -> int:
    """The next quotation mark that stands before a colon; the length of `text` when there is none."""
    while at < len(text):
        end = at + PIECE
        found = _NAMED.search(text, at, end)
        within.spend(((found.start() if found else end) - at) // CHARS)
        if found is None:
            at = end
        elif text[found.end() - 1] == ":" or _COLON.match(text, found.start() + 1):
            return found.start()
        else:  # blanks to the end of the piece, and no colon behind them
            at = end
    return len(text)


def _string(text: str, at: int, within: Slices) -> tuple[str, int]:
    """The rest of a string, without its escapes, and where it ends; the text's end where it is cut.

    One with an escape that is none keeps its quotation mark: it is no JSON, and may be a name what it begins.
    """
    pieces, mark = list[str](), ""
    while True:
        found = _INSIDE.match(text, at, at + PIECE)
        assert found is not None
        piece, at = found[0], found.end()
        within.spend(len(piece) // CHARS)
        if "\\" in piece:
            try:
                piece = str(_strings.decode(f'"{piece}"'))
            except ValueError:
                piece, mark = piece.replace("\\", ""), '"'
        pieces.append(piece)
        if text.startswith('"', at):
            return mark + "".join(pieces), at + 1
        if at == len(text) or _HALF_ESCAPE.match(text, at):
            return mark + "".join(pieces), len(text)
        if not found[0]:
            within.spend()
            mark = '"'
            at += 1


def _end_of_value(text: str, start: int, within: Slices) -> int:
    """Where the value ends that begins here; `start` for one that may be read."""
    if text.startswith('"', start):
        return _string(text, start + 1, within)[1]
    if not text.startswith(("[", "{"), start) or _SCHEMA.match(text, start):
        return start
    awaited, at = list[str](), start
    while (part := _PART.search(text, at)) is not None:
        within.spend(2)
        bracket, at = part[0], part.end()
        if bracket == '"':
            at = _string(text, at, within)[1]
        elif bracket in "[{":
            awaited.append("]" if bracket == "[" else "}")
        elif bracket == awaited[-1]:  # one that closes what is not open hides rather too much
            awaited.pop()
            if not awaited:
                return at
    return len(text)


def _bearer_keys(text: str, within: Slices) -> Iterator[Replacement]:
    at = 0
    while at < len(text):
        end = at + PIECE
        found = _BEARER.search(text, at, end + len("bearer"))
        within.spend(LOOK + ((found.start() if found else end) - at) // CHARS)
        if found is None:
            at = end
            continue
        start, at = found.span()
        key = _BEARER_KEY.match(text, at)
        if key is not None and not _is_in_word(text, start):
            at = key.end()
            yield at - len(key[0].lstrip()), at, MASK


def _is_in_word(text: str, at: int) -> bool:
    return at > 0 and (text[at - 1].isalnum() or text[at - 1] == "_")


def _loose_fields(text: str, within: Slices) -> Iterator[Replacement]:
    """Values of fields in what is no JSON."""
    at = last = 0
    while (named := _name_end(text, at, within)) < len(text):
        within.spend(LOOK)
        at = named + 1
        name = _loose_name(text, last, named)
        value = name and _LOOSE_VALUE.match(text, name[1])
        if name and value:
            at = last = value.end()
            is_logprob = name[0] == "token" and _LOGPROB.match(text, at + 1)
            if not is_logprob and is_secret(name[0]):
                yield value.start(2), at, MASK


def _loose_name(text: str, start: int, end: int) -> tuple[str, int] | None:
    """A name that may be a secret's, and where it ends: before the backslashes in front of `end`."""
    if not text.startswith("\\", end - 1) and not may_be_secret(text, start, end):
        return None
    before = text[max(start, end - PIECE) : end].rstrip("\\")
    quote, escape = before.rfind('"'), before.rfind("\\")
    end -= len(text[max(start, end - PIECE) : end]) - len(before)
    if quote <= escape or not may_be_secret(before, quote + 1, len(before)):
        return None
    return before[quote + 1 :], end
