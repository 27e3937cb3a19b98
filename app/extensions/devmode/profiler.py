"""Routes of the profiler: requests are validated, and nothing is profiled."""

import re

from app.core.protocol.coercion import JsonObject
from app.core.protocol.decoding import RawRequest, Request, decode
from app.core.protocol.features import VllmVersion
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, invalid_field
from app.core.server.http.route import EMPTY_ANSWER, NO_MEDIA, Route, RouteDocs, action

PREFIX = re.compile(r"[a-zA-Z0-9][\w.-]{0,127}", re.ASCII)
FIELD_TYPES = {"profile_prefix": str, "delay_iterations": int, "max_iterations": int}


class StartProfileRequest(Request, kw_only=True):
    """The body of ``POST /start_profile``; vLLM converts no other types to its fields."""

    profile_prefix: str | None = None
    delay_iterations: int | None = None
    max_iterations: int | None = None
    profiler_kwargs: JsonObject | None = None

    def check_rules(self: "StartProfileRequest | RawRequest") -> None:
        """Checks types and ranges of the fields."""
        for name, field_type in FIELD_TYPES.items():
            value = getattr(self, name)
            if value is not None and type(value) is not field_type:
                problem = f"Input should be of type {field_type.__name__}"
                raise invalid_field(f"{field_type.__name__}_type", f"body.{name}", problem)
            if isinstance(value, int) and value < 0:
                raise bad_request(f"{name} must not be negative")
        if self.profile_prefix is not None and not PREFIX.fullmatch(self.profile_prefix):
            raise bad_request(
                "profile_prefix must start with a letter or digit and consist of at most 128 "
                "letters, digits, dots, underscores, and dashes"
            )


def profiler_routes(body_limits: BodyLimits, version: VllmVersion) -> list[Route]:
    """Returns the routes that start and stop the profiler."""
    ignored_fields = version.ignored_fields

    def start_profile(context: RequestContext) -> None:
        """Succeeds, if the options of the session are valid."""
        body = body_limits.read(context)
        if body:
            decode(body, context.content_type, StartProfileRequest, ignored_fields=ignored_fields)

    def stop_profile(context: RequestContext) -> None:
        """Succeeds."""

    start_docs = RouteDocs(body=(StartProfileRequest,), body_is_optional=True, media=NO_MEDIA)
    return [
        action("POST /start_profile", start_profile, start_docs),
        action("POST /stop_profile", stop_profile, EMPTY_ANSWER),
    ]
