"""Differences of SGLang's OpenAI routes: flat errors, `matched_stop`, and `metadata`.

Answers are changed as bytes. In JSON a quotation mark within a text has a backslash before it, so
the patterns below match keys only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from app.core.api.responder import EventStream
from app.core.api.writer import ResponseWriter
from app.core.protocol.common import encode
from app.core.server.http.response import JSON
from app.core.server.middleware.stack import Middleware
from app.extensions.sglang.errors import flat
from config.untrusted import UntrustedDataError, decode_untrusted

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.core.api.weight_spans import Weights
    from app.core.engine.outputs import EngineOutput, Part
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import Response

GENERATING = frozenset(("/v1/chat/completions", "/v1/completions"))
"""Routes that generate."""
OTHER_FAMILIES = ("/v1/messages", "/v1/responses")
"""Routes whose errors have the form of another API, in SGLang too."""
NATURAL_END = re.compile(rb'("finish_reason":"(?:stop|tool_calls)"),"stop_reason":null')
"""A choice that ends with the end-of-text token."""
STOP_REASON = re.compile(rb'("finish_reason":"[a-z_]+"),"stop_reason":')
"""The end of a choice. Events of other tokens keep vLLM's field, whose value is null."""


class ErrorDetails(Struct):
    """The error of an OpenAI route."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(Struct):
    """The body of an error of an OpenAI route."""

    error: ErrorDetails


_error_decoder = msgspec.json.Decoder(ErrorBody)


class StopNames:
    """Names what ended a choice `matched_stop`; the end-of-text token counts as a match."""

    def __init__(self, eos_token_id: int | None) -> None:
        self._natural_end = rb'\1,"matched_stop":' + encode(eos_token_id)

    def replace(self, data: bytes) -> bytes:
        """Returns an answer, or events, with the other name."""
        data = NATURAL_END.sub(self._natural_end, data)
        return STOP_REASON.sub(rb'\1,"matched_stop":', data)


class RenamingWriter(ResponseWriter):
    """Writes the events of another writer. An event that ends a choice has another name."""

    def __init__(self, writer: ResponseWriter, names: StopNames) -> None:
        super().__init__(1)
        self._writer = writer
        self._names = names
        self.choices = writer.choices
        self.keeps_alive = writer.keeps_alive
        self.parser_runs = writer.parser_runs
        self.closing: Callable[[], bytes] = writer.closing

    def chunk(self, output: EngineOutput) -> bytes:
        """Returns the events of `output`."""
        return self._names.replace(self._writer.chunk(output))

    def around_text(self, index: int) -> tuple[bytes, bytes] | None:
        """Returns the bytes around the text of a plain token."""
        return self._writer.around_text(index)

    def around_arguments(self, index: int, part: Part) -> tuple[bytes, bytes] | None:
        """Returns the bytes around the text of a token within a tool call."""
        return self._writer.around_arguments(index, part)


class OpenAiForms(Middleware):
    """Changes the answers of the OpenAI routes."""

    def __init__(self, names: StopNames, weights: Weights) -> None:
        self._names = names
        self._weights = weights

    def end(self, context: RequestContext, response: Response) -> None:
        """Changes an error, or the answer of a route that generates."""
        body = response.body
        if response.status >= 400:
            if isinstance(body, bytes) and context.path.startswith("/v1/"):
                self._flatten(context, response, body)
        elif response.status == 200 and context.path in GENERATING:
            self._rename(response)

    def _flatten(self, context: RequestContext, response: Response, body: bytes) -> None:
        if context.path.startswith(OTHER_FAMILIES):
            return
        try:
            error = decode_untrusted(body, decoder=_error_decoder).error
        except UntrustedDataError:
            return
        response.replace_body(encode(flat(error.code, error.type, error.message, error.param)))

    def _rename(self, response: Response) -> None:
        body = response.body
        if isinstance(body, EventStream):
            body.writer = RenamingWriter(body.writer, self._names)
        elif isinstance(body, bytes) and response.streamed:
            response.body = self._names.replace(body)
        elif isinstance(body, bytes) and response.headers.get("Content-Type") == JSON:
            metadata = encode({"weight_version": self._weights.version})
            renamed = self._names.replace(body).removesuffix(b"}")
            response.replace_body(b'%b,"metadata":%b}' % (renamed, metadata))
