"""Fields of a response about the prompt cache, which have no effect.

The newest versions of vLLM validate and repeat them; see `releases`.
"""

from typing import ClassVar, Literal

from msgspec import Struct

from app.core.protocol.coercion import LaxFields
from app.core.protocol.convert import convert_value
from app.extensions.responses.protocol import ResponseObject, ResponsesRequest

Retention = Literal["in_memory", "24h"]


def convert_retention(value: object) -> Retention | None:
    """Converts `prompt_cache_retention`, also as older SDKs spell it.

    Raises:
        ConversionError: The value is none of vLLM's.
    """
    if value == "in-memory":
        value = "in_memory"
    retention: Retention | None = convert_value(Retention | None, value)
    return retention


class PromptCacheOptions(Struct, kw_only=True):
    """Options of prompt caching; the answer does not repeat `prewarm`."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: Literal["30m"] = "30m"
    comparison_response_id: str | None = None
    prewarm: bool | None = None


class CachedResponsesRequest(ResponsesRequest, kw_only=True):
    """The body of ``POST /v1/responses`` with the fields of the prompt cache."""

    spaces_between_special_tokens: bool = True
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Retention | None = None
    safety_identifier: str | None = None

    lax_fields: ClassVar[LaxFields] = {
        **ResponsesRequest.lax_fields,
        "prompt_cache_retention": convert_retention,
    }

    def repeat_cache_fields(self, response: ResponseObject) -> None:
        """Sets the fields of `response` that repeat those of the prompt cache."""
        response.prompt_cache_key = self.prompt_cache_key
        response.prompt_cache_retention = self.prompt_cache_retention
        response.safety_identifier = self.safety_identifier
        response.prompt_cache_options = None
        if self.prompt_cache_options is not None:
            response.prompt_cache_options = {
                "mode": self.prompt_cache_options.mode,
                "ttl": self.prompt_cache_options.ttl,
                "comparison_response_id": self.prompt_cache_options.comparison_response_id,
            }
