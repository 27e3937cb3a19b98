"""Masks secrets in logs and recordings: headers, parameters, JSON fields and bearer keys.

A body may be invalid JSON, and may be cut at its end. Every pattern is linear in the length of its text.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from urllib.parse import unquote

import msgspec

MASK = "***"
DEEPEST = 4
"""Most levels of JSON inside JSON strings (such as arguments of tool calls) that are searched."""
WORDS = (
    *("key", "keys", "apikey", "apikeys", "token", "secret", "secrets", "password", "passwd", "passphrase"),
    *("authorization", "cookie", "cookies", "credential", "credentials", "signature"),
)
_SECRET = re.compile(rf"(?:.*[^a-z])?(?:{'|'.join(WORDS)})", re.S)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_QUERY = re.compile(r"([?&;])([^=&;]*)=([^&;]*)")

_WORD_ENDS = "".join(sorted({word[-1] for word in WORDS}))
_BEHIND_WORD = f"(?i:(?<=[{_WORD_ENDS}])(?:{'|'.join(f'(?<={word})' for word in WORDS)}))"
_SUSPECT = re.compile(
    rf'(?<!\\)"(?P<text>[^"\\]*+(?:{_BEHIND_WORD}(?="\s*+:)|(?:\\.[^"\\]*+)++))"?(?P<colon>\s*+:\s*+)?', re.S
)
"""A name that may be a secret's, or a string with an escape, which may hide a secret."""
_LOOSE = re.compile(
    rf'"(?P<name>[^"\\]*+{_BEHIND_WORD})\\*+"\s*+:\s*+\\*+"(?!{re.escape(MASK)}")(?P<value>[^"]*+)'
)
"""A field in invalid JSON; each quotation mark may have a backslash before it."""
_PART = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.S)
_CLOSING = {"[": "]", "{": "}"}
_MAY_HIDE = re.compile('"|[bB]earer|BEARER')
_SCHEMA = re.compile(
    r'\{\s*+(?:\}|"(?:\$\w++|anyOf|oneOf|allOf|enum|const|title|description|default|format|items|properties)"'
    r'|"type"\s*+:\s*+(?:\[|"(?:string|number|integer|boolean|array|object|null)"))'
)
"""Start of a field's JSON Schema, which is not a secret."""
_LOGPROB = re.compile(r'"?\s*+,\s*+"(?:logprob|bytes)"')
"""Text after the `token` of a log probability; that token is not a secret."""
_BEARER_KEY = re.compile(r"(?<!\w)[bB][eE][aA][rR][eE][rR]\s++(?P<value>[\w.~+/=-]++)")

Replacement = tuple[int, int, str]
"""Start and end of a replaced range, and the new text."""


def is_secret(name: str) -> bool:
    """Returns True if the last word of a name is one of `WORDS`: `X-Api-Key`, `hfToken`, not `max_tokens`."""
    return _SECRET.fullmatch(_CAMEL.sub("-", name).lower()) is not None


def mask_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, MASK if is_secret(name) else value) for name, value in headers]


def mask_query(path: str) -> str:
    """Masks the values of secret parameters in a path with query."""

    def masked(found: re.Match[str]) -> str:
        before, name, value = found.groups()
        return f"{before}{name}={MASK if is_secret(unquote(name)) else value}"

    return _QUERY.sub(masked, path)


def mask_text(text: str, depth: int = DEEPEST) -> str:
    """Masks the secrets of `text`. Numbers and the schemas of fields stay. Long texts belong off the hub."""
    return _masked(text, [], depth)[0]


def mask_pieces(pieces: Sequence[str]) -> list[str]:
    """Masks a text in parts. The mask of a secret is in the part where the secret begins."""
    masked, ends = _masked("".join(pieces), list(accumulate(map(len, pieces))), DEEPEST)
    return [masked[start:end] for start, end in pairwise([0, *ends])]


def _masked(text: str, cuts: list[int], depth: int) -> tuple[str, list[int]]:
    """Masks `text`; returns the new text and the new positions of `cuts` (ascending)."""
    masked, cuts = _replaced(text, _fields(text, depth), cuts)
    masked, cuts = _replaced(masked, _found(_BEARER_KEY, masked), cuts)
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _replaced(masked, _found(_LOOSE, masked), cuts)
    return masked, cuts


def _found(pattern: re.Pattern[str], text: str) -> Iterator[Replacement]:
    """Yields masks for the values that `pattern` finds, if their names, where it finds names, are secret."""
    for found in pattern.finditer(text):
        name = found.groupdict().get("name")
        if name is None or is_secret(name) and not (name == "token" and _LOGPROB.match(text, found.end())):
            yield (*found.span("value"), MASK)


def _replaced(text: str, replacements: Iterable[Replacement], cuts: list[int]) -> tuple[str, list[int]]:
    pieces: list[str] = []
    moved: list[int] = []
    done = shift = 0
    for start, end, instead in replacements:
        pieces += text[done:start], instead
        while len(moved) < len(cuts) and (cut := cuts[len(moved)]) < end:
            moved.append(cut + shift if cut <= start else start + shift + len(instead))
        done, shift = end, shift + len(instead) - (end - start)
    moved += [cut + shift for cut in cuts[len(moved) :]]
    return "".join([*pieces, text[done:]]), moved


def _fields(text: str, depth: int) -> Iterator[Replacement]:
    """Yields replacements of fields with a secret name, and of strings that hide such fields."""
    at = 0
    while (found := _SUSPECT.search(text, at)) is not None:
        string, at = found["text"], found.end()
        if "\\" in string:
            try:
                string = str(json.loads(f'"{string}"', strict=False))
            except ValueError:  # an invalid escape
                string = string.replace("\\", "")
        if found["colon"] is None:
            if depth and _MAY_HIDE.search(string):
                masked = mask_text(string, depth - 1)
                if masked != string:
                    yield found.start(), at, json.dumps(masked, ensure_ascii=False)
        elif is_secret(string):
            start, at = at, _end_of_value(text, at)
            if at > start and not (string == "token" and _LOGPROB.match(text, at)):
                yield start, at, f'"{MASK}"'


def _end_of_value(text: str, start: int) -> int:
    """Returns the end of the value at `start`; `start` for a value that stays readable."""
    if not text.startswith(('"', "[", "{"), start) or _SCHEMA.match(text, start):
        return start
    awaited: list[str] = []
    for part in _PART.finditer(text, start):
        sign = part[0]
        if sign in _CLOSING:
            awaited.append(_CLOSING[sign])
        elif awaited and sign == awaited[-1]:  # an unmatched bracket masks too much, never too little
            awaited.pop()
        if not awaited:
            return part.end()
    return len(text)
