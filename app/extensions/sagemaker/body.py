"""The body of a request to /invocations, which the sessions and the route share."""

from app.core.protocol.decoding import read_json
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext


class ParsedBody:
    """The JSON of a request's body, until the route has taken it."""

    def __init__(self, values: object) -> None:
        self.values = values


def parse_body(context: RequestContext, body: BodyLimits) -> object:
    """Returns the JSON of the request's body, and keeps it for `take_body`.

    Raises:
        ApiError: 400 for a body that is not JSON; 408 or 413.
    """
    values = read_json(body.read(context))
    context.keep(ParsedBody(values))
    return values


def take_body(context: RequestContext, body: BodyLimits) -> object:
    """Returns the JSON that `parse_body` has kept, or parses it now.

    The request does not refer to it afterwards: a stream may last for minutes.

    Raises:
        ApiError: 400 for a body that is not JSON; 408 or 413.
    """
    parsed = context.kept(ParsedBody)
    if parsed is None:
        return read_json(body.read(context))
    values = parsed.values
    parsed.values = None
    return values
