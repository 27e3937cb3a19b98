"""What nobody should read in a log: the values of names that sound like secrets, wherever they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

import msgspec

MASK = "***"
_WORDS = (
    "keys?|apikeys?|token|secrets?|password|passwd|passphrase|authorization|cookies?|credentials?|signature"
)
_SECRET = re.compile(rf"(?:.*[^a-z])?(?:{_WORDS})", re.S)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BEARER = re.compile(r"\b(Bearer\s+)[\w.~+/=-]+", re.I)
_MAY_HIDE = re.compile('"|bearer', re.I)
_QUERY = re.compile(r"([?&;])([^=&;]*)=([^&;]*)")

_SUSPECT = re.compile(rf'"(?:[^"\\]*\\|[^"\\]*(?:{_WORDS})"\s*:)', re.I)
"""A string with an escape, which may hide anything, or a name that may be a secret's."""
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.S)
"""A string, or the beginning of one."""
_PART = re.compile(rf"{_STRING.pattern}|[\[\]{{}}]", re.S)
_COLON = re.compile(r"\s*:\s*")
_SCHEMA = re.compile(
    r'\{\s*(?:\}|"(?:\$\w+|anyOf|oneOf|allOf|enum|const|title|description|default|format|items|properties)"'
    r'|"type"\s*:\s*(?:\[|"(?:string|number|integer|boolean|array|object|null)"))'
)
"""The beginning of what a JSON Schema says of a field: no secret."""
_LOGPROB = re.compile(r'\s*,\s*"(?:logprob|bytes)"')
"""What follows the `token` of a log probability, which is no secret."""
_LOOSE = re.compile(rf'"([^"\\]*(?:{_WORDS}))(\\*"\s*:\s*\\*")(?!{re.escape(MASK)}")([^"]*)', re.I)
"""A field in what is no JSON: of quotation marks behind a backslash nobody knows what they begin."""
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_strings = json.JSONDecoder(strict=False)
DEEPEST = 4
"""JSON in a text in JSON, as arguments of tool calls are: so many times are looked into."""


def is_secret(name: str) -> bool:
    """True for the name of a header, field or parameter whose value nobody should read.

    Those are names whose last word is one of the above: `api_key`, `X-Api-Key`, `hfToken` are, `max_tokens`
    and `token_ids` are not.
    """
    return _SECRET.fullmatch(_CAMEL.sub("-", name).lower()) is not None


def mask_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names and values; those of secrets are replaced."""
    return {name: MASK if is_secret(name) else value for name, value in headers}


def mask_query(path: str) -> str:
    """A path with its query, without the values of secret parameters."""
    return _QUERY.sub(lambda found: f"{found[1]}{found[2]}={MASK if is_secret(found[2]) else found[3]}", path)


def mask_text(text: str, depth: int = DEEPEST) -> str:
    """A body: whatever JSON fields with a secret name hold, and bearer keys anywhere, are replaced.

    It need not be valid JSON, and may be cut anywhere. Numbers stay, and what a schema says of a field.
    """
    pieces: list[str] = []
    done = 0
    for start, end, instead in _masked(text, depth):
        pieces += text[done:start], instead
        done = end
    masked = _BEARER.sub(rf"\1{MASK}", "".join([*pieces, text[done:]]))
    return masked if _is_json(text) else _LOOSE.sub(_masked_loosely, masked)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _masked_loosely(found: re.Match[str]) -> str:
    name, between, _ = found.groups()
    is_logprob = name == "token" and _LOGPROB.match(found.string, found.end() + 1)
    return found[0] if is_logprob or not is_secret(name) else f'"{name}{between}{MASK}'


def _masked(text: str, depth: int) -> Iterator[tuple[int, int, str]]:
    """What is to be replaced, from where to where, and by what."""
    at = 0
    while (found := _SUSPECT.search(text, at)) is not None:
        start = found.start()
        string, end = _read(text, start)
        colon = _COLON.match(text, end)
        if colon is None:
            at = end
            if depth and _MAY_HIDE.search(string) and (masked := mask_text(string, depth - 1)) != string:
                yield start, end, json.dumps(masked, ensure_ascii=False)
        elif is_secret(string):
            at = _end_of_value(text, colon.end())
            if at > colon.end() and not (string == "token" and _LOGPROB.match(text, at)):
                yield colon.end(), at, f'"{MASK}"'
        else:
            at = colon.end()


def _read(text: str, start: int) -> tuple[str, int]:
    """The string that begins here, without its escapes, and where it ends; the text's end where it is cut."""
    try:
        string, end = _strings.raw_decode(text, start)
        return str(string), end
    except ValueError:
        found = _STRING.match(text, start)
        assert found is not None
        begun = _HALF_ESCAPE.sub("", found[0].removesuffix('"'))
    try:
        return str(_strings.decode(f'{begun}"')), found.end()
    except ValueError:  # an escape that is none: no JSON
        return begun.replace("\\", ""), found.end()


def _end_of_value(text: str, start: int) -> int:
    """Where the value ends that begins here; `start` for one that may be read."""
    if text.startswith('"', start):
        return _read(text, start)[1]
    if not text.startswith(("[", "{"), start) or _SCHEMA.match(text, start):
        return start
    awaited = []
    for part in _PART.finditer(text, start):
        bracket = part[0]
        if bracket in "[{":
            awaited.append("]" if bracket == "[" else "}")
        elif bracket == awaited[-1]:  # one that closes what is not open hides rather too much
            awaited.pop()
            if not awaited:
                return part.end()
    return len(text)
