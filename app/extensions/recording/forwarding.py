"""The path and query that a target receives: as the client sent them, byte for byte.

Nothing is decoded on the way, because `%2F` and `/` differ for a target. A path that any server
could resolve to another place is refused: the target's key would be used outside the API that the
client may call.
"""

import re
from urllib.parse import quote, unquote_to_bytes

from app.core.server.http.context import PATH_CHARACTERS, RequestContext
from app.core.server.http.errors import bad_request

MAX_DECODINGS = 5
"""Most times that a path is decoded to find dot segments: `%252e` is decoded twice."""
MAX_QUOTED_LENGTH = 40
"""Most characters of a path segment in an error message."""
_SEPARATOR = re.compile(r"[/\\]")
_PARAMETERS = re.compile(r"[;\x00].*", re.S)
"""The part of a segment that a server may leave out."""
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


def _escaped(match: re.Match[str]) -> str:
    # WSGI servers pass bytes as Latin-1; text of other sources may have any character.
    try:
        return quote(match[0].encode("latin-1"))
    except UnicodeEncodeError:
        return quote(match[0])


def target_without_root_path(context: RequestContext) -> str:
    """Returns path and query as the client sent them, without the `root-path` before them."""
    path, mark, query = origin_form(context.target).partition("?")
    query = mark + query
    sent = _decoded(path)
    if sent == context.path:
        return path + query
    removed = sent.removesuffix(context.path)
    *_, remaining_path = path.split("/", removed.count("/") + 1)
    if _decoded(f"/{remaining_path}") == context.path:
        return f"/{remaining_path}{query}"
    return quote(context.path, safe=PATH_CHARACTERS) + query


def check_path(target: str) -> None:
    """Checks that a path cannot leave its first segment, as /v1/../admin would.

    Servers differ in how they read a path: they may decode dots, slashes and backslashes, also
    several times, merge slashes, and drop parameters (`..;x`). Some decode `%2e` and keep `%2f`. So
    the segments between plain slashes are counted for the worst reading: all that may mean `..`
    goes up, and a segment goes down by one at most.

    Raises:
        ApiError: 400 for a path that may leave its first segment.
    """
    path = target.partition("?")[0]
    if not path.startswith("/"):
        raise bad_request("The path must begin with a slash.")
    first, *segments = path[1:].split("/")
    depth = _min_depth(first, is_first=True)
    for segment in segments:
        if depth is None or depth < 0:
            break
        change = _min_depth(segment)
        depth = None if change is None else depth + change
    if depth is None or depth < 0:
        raise bad_request(
            f"The path leads outside /{first[:MAX_QUOTED_LENGTH]}, so the request is not sent "
            "to the target."
        )


def _min_depth(segment: str, is_first: bool = False) -> int | None:
    """Returns by how many levels a segment leads down at least: 1, 0, or -1 for `..`.

    None for a segment that servers may split in ways that matter, or that is encoded too often to
    know. The level of the first segment is 0.
    """
    decoded = segment
    for _ in range(MAX_DECODINGS):
        decoded = _decoded(decoded)
    if decoded != _decoded(decoded):
        return None
    names = [_PARAMETERS.sub("", part) for part in _SEPARATOR.split(decoded)]
    is_split = len(names) > 1
    if is_split and (is_first or ".." in names):
        return None
    if is_first:
        return None if names[0] in (".", "..") else 0
    if names[0] == ".." and not is_split:
        return -1
    return 1 if set(names) - {"", "."} else 0


def _decoded(path: str) -> str:
    return unquote_to_bytes(path).decode(errors="replace")
