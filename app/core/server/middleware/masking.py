"""Masks secrets in logs, recordings and the journal. Start reading at `mask_text`.

Secrets are bearer keys, passwords in URLs, and the values of headers, parameters, JSON fields and
fields of forms that have the name of a secret. In a query, a value that looks like a secret is one,
too. A body may be invalid JSON, and may be cut at its
end.

Every pattern is linear in the length of its text: repetitions are possessive, and no two searches
begin within the same run of characters.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from urllib.parse import quote_plus, unquote_plus

from app.core.server.middleware.multipart import fields_of
from config.secret_names import WORDS, is_secret, is_secret_parameter
from config.untrusted import is_valid_json

MASK = "***"
MAX_DEPTH = 4
"""Most levels of texts within texts that are searched.

Such texts are JSON in a JSON string (such as arguments of tool calls), or an encoded URL in a
parameter.
"""
FORM_TYPE = "application/x-www-form-urlencoded"
_FORM_PARAMETER = re.compile(r"(?:[?&;]|\A)(?P<name>[^=&;?]*+)=(?P<value>[^&;?]*+)")
"""A parameter of a form, or of a request's query."""
_FORM_VALUE = re.compile(r"[^&]*+")
"""The whole value of a secret parameter. `;` and `?` may be characters of the secret."""
_URL_PARAMETER = re.compile(r"""[?&;#](?P<name>[^\s=&;?#"\\<>`]*+)=(?P<value>[^\s&;?#"\\<>`]*+)""")
"""A parameter of a URL within another text, such as JSON."""
_URL_VALUE = re.compile(r"""[^\s&"\\<>`]*+""")
_AUTHORITY = re.compile(r"""://(?P<authority>[^\s/?#"\\<>`]*+)""")
_FORM = re.compile(r"""[^\s"{}<>\\=&]++=[^\s"{}<>\\]*+""")
"""A whole text that looks like an encoded form."""

_WORD_ENDS = "".join(sorted({word[-1] for word in WORDS}))
_AFTER_WORD = f"(?i:(?<=[{_WORD_ENDS}])(?:{'|'.join(f'(?<={word})' for word in WORDS)}))"
_SUSPECT = re.compile(
    rf'(?<!\\)"(?P<text>[^"\\]*+(?:{_AFTER_WORD}(?="\s*+:)|(?:\\.[^"\\]*+)++))"?'
    r"(?P<colon>\s*+:\s*+)?",
    re.S,
)
"""A name that may be a secret's, or a string with an escape, which may hide a secret."""
_LOOSE = re.compile(
    rf'"(?P<name>[^"\\]*+{_AFTER_WORD})\\*+"\s*+:\s*+\\*+"(?!{re.escape(MASK)}")(?P<value>[^"]*+)'
)
"""A field in invalid JSON; each quotation mark may have a backslash before it."""
_PART = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.S)
_CLOSING = {"[": "]", "{": "}"}
_MAY_HIDE = re.compile('["=]|://|%3[dD]|[bB]earer|BEARER')
"""A decoded text that has none of these hides no secret."""
_SCHEMA = re.compile(
    r'\{\s*+(?:\}|"(?:\$\w++|anyOf|oneOf|allOf|enum|const|title|description|default|format|items'
    r'|properties)"'
    r'|"type"\s*+:\s*+(?:\[|"(?:string|number|integer|boolean|array|object|null)"))'
)
"""Start of a field's JSON Schema, which is not a secret."""
_LOGPROB = re.compile(r'"?\s*+,\s*+"(?:logprob|bytes)"')
"""Text after the `token` of a log probability; that token is not a secret."""
_BEARER_KEY = re.compile(r"(?<!\w)[bB][eE][aA][rR][eE][rR]\s++(?P<value>[\w.~+/=-]++)")

Replacement = tuple[int, int, str]
"""Start and end of a replaced range, and the new text."""


def mask_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Masks the values of secret headers, and secrets in URLs in the other values."""
    masked = []
    for name, value in headers:
        value = MASK if is_secret(name) else _mask_urls(value, [], MAX_DEPTH)[0]
        masked.append((name, value))
    return masked


def mask_query(path: str) -> str:
    """Masks the secrets in the query of a path."""
    path_end = path.find("?")
    if path_end < 0:
        return path
    query = path[path_end:]
    masked, _ = _replaced(query, _parameters(query, _FORM_PARAMETER, _FORM_VALUE, MAX_DEPTH), [])
    return path[:path_end] + _mask_urls(masked, [], MAX_DEPTH)[0]


def mask_text(text: str, depth: int = MAX_DEPTH, content_type: str = "") -> str:
    """Masks the secrets of `text`: a whole body of this content type, or any other text.

    Numbers and the schemas of fields stay. Long texts belong off the hub.
    """
    return _masked(text, [], depth, content_type)[0]


def mask_pieces(pieces: Sequence[str]) -> list[str]:
    """Masks a text in parts. The mask of a secret is in the part where the secret begins."""
    masked, ends = _masked("".join(pieces), list(accumulate(map(len, pieces))), MAX_DEPTH)
    return [masked[start:end] for start, end in pairwise([0, *ends])]


def without_cut_url(text: str) -> str:
    """Removes the host of a URL at the end of a cut text: it may be the beginning of a password."""
    start = text.rfind("://")
    if start < 0:
        return text
    match = _AUTHORITY.match(text, start)
    if match is None or match.end() < len(text):
        return text
    return text[: match.start("authority")]


def _masked(
    text: str, cuts: list[int], depth: int, content_type: str = ""
) -> tuple[str, list[int]]:
    """Masks `text`; returns the new text and the new positions of `cuts` (ascending)."""
    is_valid = is_valid_json(text)
    masked = text
    if not is_valid:
        masked, cuts = _replaced(masked, _form_fields(masked, content_type), cuts)
        # curl declares every body as a form, also a JSON one.
        if content_type.lower().startswith(FORM_TYPE) or _FORM.fullmatch(masked):
            parameters = _parameters(masked, _FORM_PARAMETER, _FORM_VALUE, depth)
            masked, cuts = _replaced(masked, parameters, cuts)
    masked, cuts = _replaced(masked, _fields(masked, depth), cuts)
    masked, cuts = _replaced(masked, _secret_values(_BEARER_KEY, masked), cuts)
    masked, cuts = _mask_urls(masked, cuts, depth)
    if not is_valid:
        masked, cuts = _replaced(masked, _secret_values(_LOOSE, masked), cuts)
    return masked, cuts


def _mask_urls(text: str, cuts: list[int], depth: int) -> tuple[str, list[int]]:
    """Masks the secrets in URLs; returns the new text and the new positions of `cuts`."""
    masked, cuts = _replaced(text, _parameters(text, _URL_PARAMETER, _URL_VALUE, depth), cuts)
    return _replaced(masked, _passwords(masked), cuts)


def _form_fields(text: str, content_type: str) -> Iterator[Replacement]:
    """Yields masks for the contents of the secret fields of a multipart body."""
    for field in fields_of(text, content_type):
        if any(map(is_secret, field.names)):
            yield field.start, field.end, MASK


def _parameters(
    text: str, parameter: re.Pattern[str], secret_value: re.Pattern[str], depth: int
) -> Iterator[Replacement]:
    """Yields masks for secret parameters, and for secrets within encoded values of other ones."""
    position = 0
    match = parameter.search(text, position)
    while match is not None:
        start, position = match.span("value")
        value = match["value"]
        decoded = unquote_plus(value)
        # Texts may have URLs with numbers of documents, which look like secrets.
        shown_value = decoded if parameter is _FORM_PARAMETER else ""
        if is_secret_parameter(unquote_plus(match["name"]), shown_value):
            value_match = secret_value.match(text, start)
            position = start if value_match is None else value_match.end()
            yield start, position, MASK
        elif depth and ("%" in value or "+" in value):
            masked = decoded
            if _MAY_HIDE.search(decoded):
                masked = mask_text(decoded, depth - 1)
            if masked != decoded:
                yield start, position, quote_plus(masked, safe="*")
        match = parameter.search(text, position)


def _passwords(text: str) -> Iterator[Replacement]:
    """Yields masks for the passwords of URLs such as https://user:password@host."""
    for match in _AUTHORITY.finditer(text):
        user, _, password = match["authority"].rpartition("@")[0].partition(":")
        if password:
            start = match.start("authority") + len(user) + 1
            yield start, start + len(password), MASK


def _secret_values(pattern: re.Pattern[str], text: str) -> Iterator[Replacement]:
    """Yields masks for the values that `pattern` finds.

    If the pattern finds names, too, only values with the name of a secret are masked.
    """
    for match in pattern.finditer(text):
        name = match.groupdict().get("name")
        if name is not None:
            if not is_secret(name):
                continue
            if name == "token" and _LOGPROB.match(text, match.end()):
                continue
        start, end = match.span("value")
        yield start, end, MASK


def _replaced(
    text: str, replacements: Iterable[Replacement], cuts: list[int]
) -> tuple[str, list[int]]:
    """Returns the new text, and the new positions of `cuts`.

    Replacements and cuts are ascending. A cut within a replaced range moves to its end.
    """
    pieces: list[str] = []
    moved_cuts: list[int] = []
    copied_end = 0
    shift = 0
    for start, end, new_text in replacements:
        pieces.append(text[copied_end:start])
        pieces.append(new_text)
        while len(moved_cuts) < len(cuts) and cuts[len(moved_cuts)] < end:
            cut = cuts[len(moved_cuts)]
            if cut <= start:
                moved_cuts.append(cut + shift)
            else:
                moved_cuts.append(start + shift + len(new_text))
        copied_end = end
        shift += len(new_text) - (end - start)
    moved_cuts += [cut + shift for cut in cuts[len(moved_cuts) :]]
    pieces.append(text[copied_end:])
    return "".join(pieces), moved_cuts


def _fields(text: str, depth: int) -> Iterator[Replacement]:
    """Yields replacements of fields with a secret name, and of strings that hide such fields."""
    match = _SUSPECT.search(text)
    while match is not None:
        position = match.end()
        string = _unescaped(match["text"])
        if match["colon"] is None:
            if depth and _MAY_HIDE.search(string):
                masked = mask_text(string, depth - 1)
                if masked != string:
                    yield match.start(), position, json.dumps(masked, ensure_ascii=False)
        elif is_secret(string):
            start = position
            position = _end_of_value(text, start)
            is_logprob = string == "token" and _LOGPROB.match(text, position)
            if position > start and not is_logprob:
                yield start, position, f'"{MASK}"'
        match = _SUSPECT.search(text, position)


def _unescaped(string: str) -> str:
    """Returns the content of a JSON string without its escapes."""
    if "\\" not in string:
        return string
    try:
        return str(json.loads(f'"{string}"', strict=False))
    except ValueError:  # an invalid escape
        return string.replace("\\", "")


def _end_of_value(text: str, start: int) -> int:
    """Returns the end of the value at `start`; `start` for a value that stays readable."""
    if not text.startswith(('"', "[", "{"), start) or _SCHEMA.match(text, start):
        return start
    closing_brackets: list[str] = []
    for part in _PART.finditer(text, start):
        token = part[0]
        if token in _CLOSING:
            closing_brackets.append(_CLOSING[token])
        # An unmatched bracket masks too much, never too little.
        elif closing_brackets and token == closing_brackets[-1]:
            closing_brackets.pop()
        if not closing_brackets:
            return part.end()
    return len(text)
