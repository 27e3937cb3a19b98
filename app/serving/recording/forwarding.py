"""The path and query that a target receives: as the client sent them, byte for byte.

Nothing is decoded on the way, because `%2F` and `/` differ for a target. A path that any server could
resolve to another place is refused: the target's key would be used outside the API that the client may call.
"""

import re
from urllib.parse import quote, unquote_to_bytes

from app.serving.http.context import PATH_CHARACTERS, RequestContext
from app.serving.http.errors import bad_request

MOST_DECODINGS = 5
"""Most times that a path is decoded to find dot segments: `%252e` is decoded twice."""
MOST_SHOWN = 40
"""Most characters of a path segment in an error message."""
_UNSENDABLE = re.compile(r"[^\x21-\x7e]+")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


def origin_form(target: str) -> str:
    """Returns path and query of a request's target, in ASCII: without scheme, host and fragment.

    Bytes that no request line may contain are percent-encoded; all others stay as they were sent.
    """
    target = target.partition("#")[0]
    authority = _AUTHORITY.match(target)
    if authority is not None:
        target = target[authority.end() :]
        if not target.startswith("/"):
            target = f"/{target}"
    return _UNSENDABLE.sub(_escaped, target)


def _escaped(found: re.Match[str]) -> str:
    """WSGI servers pass bytes as Latin-1; text of other sources may have any character."""
    try:
        return quote(found[0].encode("latin-1"))
    except UnicodeEncodeError:
        return quote(found[0])


def own_target(context: RequestContext) -> str:
    """Returns path and query as the client sent them, without the `root-path` before them."""
    path, mark, query = origin_form(context.target).partition("?")
    query = mark + query
    sent = _decoded(path)
    if sent == context.path:
        return path + query
    removed = sent.removesuffix(context.path)
    *_, own_path = path.split("/", removed.count("/") + 1)
    if _decoded(f"/{own_path}") == context.path:
        return f"/{own_path}{query}"
    return quote(context.path, safe=PATH_CHARACTERS) + query


def check_path(target: str) -> None:
    """Raises ApiError 400 for a path that leaves its first segment, such as /v1/../admin.

    Servers differ in how they read a path, so each reading is checked: dots, slashes and backslashes may be
    percent-encoded, also several times; empty segments may be dropped; `..;` may mean `..`.
    """
    path = target.partition("?")[0]
    first = path[1:].partition("/")[0]
    shown = first[:MOST_SHOWN]
    if not path.startswith("/"):
        raise bad_request("The path must begin with a slash.")
    for _ in range(MOST_DECODINGS):
        segments = path.replace("\\", "/").split("/")[1:]
        filled = [segment for segment in segments if segment]
        is_rooted_elsewhere = _first_resolved(segments) != first
        if is_rooted_elsewhere or (first and _first_resolved(filled) != first):
            raise bad_request(f"The path leaves /{shown}: it is not sent to the target.")
        decoded = _decoded(path)
        if decoded == path:
            return
        path = decoded
        first = _decoded(first)
    raise bad_request(f"The path below /{shown} is encoded more than {MOST_DECODINGS} times.")


def _first_resolved(segments: list[str]) -> str | None:
    """Returns the first segment after dot segments are removed (RFC 3986, 5.2.4); None above the root."""
    resolved: list[str] = []
    for segment in segments:
        name = segment.partition(";")[0]
        if name == ".":
            continue
        if name != "..":
            resolved.append(segment)
        elif resolved:
            resolved.pop()
        else:
            return None
    return resolved[0] if resolved else ""


def _decoded(path: str) -> str:
    return unquote_to_bytes(path).decode(errors="replace")
