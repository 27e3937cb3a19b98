"""Responses in the form of the Open Responses specification (https://www.openresponses.org).

Requests, replies and the order of events are vLLM's. Answers have the keys that the specification
requires and vLLM lacks, values instead of the nulls that it forbids, its errors, and `[DONE]` at
the end of streams. Start with `OpenResponseHandlers`.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec import Raw
from msgspec.structs import asdict, replace

from app.core.api.choice_state import Segment
from app.core.api.errors import as_api_error, as_stream_error, forget_frames
from app.core.api.identity import ResponseMeta
from app.core.api.pipeline import RequestPipeline
from app.core.engine.outputs import TokenLogprob
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import encode
from app.core.server.http.errors import ApiError
from app.core.server.http.response import DONE, Response, json_response
from app.extensions.responses.item_names import ItemNames
from app.extensions.responses.items import Logprobs
from app.extensions.responses.protocol import ResponseObject, ResponsesRequest
from app.extensions.responses.response import new_response
from app.extensions.responses.routes import ResponseHandlers
from app.extensions.responses.store import ResponseStore
from app.extensions.responses.writer import TEXT_EVENTS, ResponsesOptions, ResponsesWriter
from app.shared.block_writer import named_event

ERROR_TYPES = {404: "not_found", 429: "too_many_requests"}
"""Types of errors by status; the others are `invalid_request` or `server_error`."""
OPTIONAL_KEYS = ("encrypted_content", "phase")
"""Keys of items that may be absent, but not null."""


class OpenRequest(ResponsesRequest, kw_only=True):
    """The body of `POST /v1/responses`."""

    safety_identifier: str | None = None


class OpenResponse(ResponseObject, kw_only=True):
    """A response; keys that vLLM lacks are at the end. Times are Unix seconds."""

    schemas: ClassVar[Sequence[str]] = ("OpenResponse",)  # the same in all versions of vLLM
    completed_at: int | None = None
    store: bool
    """The response can be read later."""
    safety_identifier: str | None
    prompt_cache_key: str | None
    error: JsonObject | None = None


class OpenItemNames(ItemNames):
    """Writes log probabilities; entries of events have bytes, too."""

    def event_entry(self, entry: TokenLogprob) -> JsonObject:
        """Returns an entry of an event."""
        return self.item_entry(entry)


class OpenResponseHandlers(ResponseHandlers):
    """Handlers of the Responses API, in the form of the specification."""

    answer_type = OpenResponse
    end_of_events = DONE

    def __init__(self, pipeline: RequestPipeline, store: ResponseStore) -> None:
        super().__init__(pipeline, store)
        self.request_type = OpenRequest

    @staticmethod
    def on_error(error: Exception) -> Response:
        """Returns the response for `error`."""
        api_error = as_api_error(error)
        forget_frames(error)
        body = encode({"error": error_fields(api_error)})
        return json_response(body, api_error.status, api_error.headers)

    def _new_response(
        self, request: ResponsesRequest, meta: ResponseMeta, max_output_tokens: int
    ) -> ResponseObject:
        assert isinstance(request, OpenRequest)
        is_stored = bool(request.store) and self._store.enabled
        return open_response(request, meta, max_output_tokens, is_stored=is_stored)

    def _new_writer(
        self, options: ResponsesOptions, on_end: Callable[[ResponseObject], None]
    ) -> ResponsesWriter:
        identity = self._pipeline.identity
        return OpenResponsesWriter(options, identity.fresh_id, on_end, now_s=identity.now_s)


def open_response(
    request: OpenRequest, meta: ResponseMeta, max_output_tokens: int, *, is_stored: bool
) -> OpenResponse:
    """Returns the response to `request`, in progress and without output.

    Raises:
        RecursionError: for tools that are nested too deeply.
        ApiError: 400 for nulls that a response cannot repeat.
    """
    response = new_response(request, meta, max_output_tokens)
    fields = asdict(response) | {
        "metadata": request.metadata or {},
        "text": Raw(encode(_text(request))),
        "top_logprobs": request.top_logprobs or 0,
        "store": is_stored,
        "safety_identifier": request.safety_identifier,
        "prompt_cache_key": request.prompt_cache_key,
        "error": None,
    }
    return OpenResponse(**fields)


def _text(request: ResponsesRequest) -> JsonObject:
    """Returns the options for the text, whose form is never null."""
    text: JsonObject = {"format": {"type": "text"}}
    if request.text is None:
        return text
    if request.text.format is not None:
        form = request.text.format.to_json()
        if "strict" in form:
            form["strict"] = bool(form["strict"])
        text["format"] = form
    if request.text.verbosity is not None:
        text["verbosity"] = request.text.verbosity
    return text


class OpenResponsesWriter(ResponsesWriter):
    """Writes the answer to one request; `now_s` returns the time in Unix seconds."""

    text_events = {**TEXT_EVENTS, "reasoning": "reasoning"}
    token_names = OpenItemNames

    def __init__(
        self,
        options: ResponsesOptions,
        new_id: Callable[[], str],
        on_end: Callable[[ResponseObject], None],
        now_s: Callable[[], int],
    ) -> None:
        super().__init__(replace(options, incomplete_items=True), new_id, on_end)
        self._now_s = now_s

    def _item(
        self, segment: Segment, *, status: str | None, text: str | Raw | None, logprobs: Logprobs
    ) -> JsonObject:
        if status is None:
            status = "completed"
            if segment is self.choices[0].segments[-1]:
                status = self._last_status()
        item = super()._item(segment, status=status, text=text, logprobs=logprobs or ())
        item["status"] = status
        for key in OPTIONAL_KEYS:
            if key in item and item[key] is None:
                del item[key]
        if "content" in item and item["content"] is None:
            item["content"] = ()
        return item

    def _content(self, segment: Segment, text: str | Raw, logprobs: Logprobs) -> JsonObject:
        return super()._content(segment, text, logprobs or ())

    def _render_failure(self, error: Exception) -> bytes:
        start = self._opening()
        fields: JsonObject = {
            "error": error_fields(as_stream_error(error)),
            "sequence_number": self._next_number(),
            "type": "error",
        }
        return start + named_event("error", fields) + super()._render_failure(error)

    def closing(self) -> bytes:
        """Returns the end of the stream, also of a failed one."""
        return super().closing() + DONE

    def _ended_response(self, items: Sequence[JsonObject] | Sequence[Raw]) -> ResponseObject:
        response = super()._ended_response(items)
        assert isinstance(response, OpenResponse)
        if response.status == "completed":
            response.completed_at = self._now_s()
        return response


def error_fields(error: ApiError) -> JsonObject:
    """Returns an error with a type of the specification, and with a code that is a text or null."""
    kind = ERROR_TYPES.get(error.status, "invalid_request")
    code = None
    if error.status >= 500:
        kind = "server_error"
        code = kind
    elif error.status == 429:
        code = "rate_limit_exceeded"
    elif error.status == 404 and error.param == "model":
        code = "model_not_found"
    return {"type": kind, "code": code, "message": error.message, "param": error.param}
