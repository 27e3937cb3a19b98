"""The object `response` before it has output: it repeats fields of the request."""

from operator import attrgetter

from msgspec import Raw

from app.core.api.identity import ResponseMeta
from app.core.protocol.common import encode
from app.core.server.http.errors import bad_request
from app.extensions.responses.protocol import ResponseObject, ResponsesRequest

REPEATED_FIELDS = (
    "instructions",
    "metadata",
    "background",
    "max_tool_calls",
    "previous_response_id",
    "reasoning",
    "service_tier",
    "truncation",
    "user",
)
SAMPLING_FIELDS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
NO_SAMPLING = (None,) * len(SAMPLING_FIELDS)
_repeated = attrgetter(*REPEATED_FIELDS)
_sampling = attrgetter(*SAMPLING_FIELDS)
"""Return the values of these fields of a request."""


def new_response(
    request: ResponsesRequest, meta: ResponseMeta, max_output_tokens: int
) -> ResponseObject:
    """Returns the response to `request`, in progress and without output.

    Raises:
        RecursionError: for tools that are nested too deeply.
        ApiError: 400 for nulls that a response cannot repeat.
    """
    if request.background is None or request.truncation is None:
        raise bad_request("background and truncation must not be null; omit them.")
    text_format = request.text and request.text.format and request.text.format.to_json()
    text = request.text and {"format": text_format, "verbosity": request.text.verbosity}
    # Raw, because these may be nested deeply, and a stream repeats them three times.
    response = ResponseObject(
        **dict(zip(REPEATED_FIELDS, _repeated(request), strict=True)),
        id=meta.id,
        created_at=meta.created,
        model=meta.model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        temperature=1.0,
        tool_choice=Raw(encode(request.tool_choice)),
        tools=Raw(encode(request.tools)),
        top_p=1.0,
        max_output_tokens=max_output_tokens,
        text=Raw(encode(text)),
        top_logprobs=request.logprobs,
        presence_penalty=0.0,
        frequency_penalty=0.0,
    )
    values = _sampling(request)
    if values != NO_SAMPLING:
        for name, value in zip(SAMPLING_FIELDS, values, strict=True):
            if value is not None:
                setattr(response, name, value)
    request.repeat_cache_fields(response)
    return response
