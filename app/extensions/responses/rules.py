"""Rules of responses that differ between versions of vLLM."""

from msgspec import Struct

from app.extensions.responses.cache_fields import CachedResponsesRequest
from app.extensions.responses.protocol import ResponsesRequest


class ResponseRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    request_type: type[ResponsesRequest] = CachedResponsesRequest
    """Type of the body of POST /v1/responses."""
    hides_unused_tools: bool = False
    """Tools are not in the prompt if `tool_choice` is `none`."""
    clips_limits: bool = False
    """A limit of tokens that exceeds the context is lowered, also in versions where it is an error
    of other requests."""
    incomplete_items: bool = True
    """The last item of a response that reaches its token limit is incomplete, as is the event."""
