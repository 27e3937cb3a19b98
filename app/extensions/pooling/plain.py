"""Plain requests for embeddings: one short text, answered from the hub without a greenlet.

As in `app.core.api.plain`, that a body can be decoded into the struct proves that it asks for
nothing special. All other requests go to the handlers in `routes`.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from app.core.api.plain import SPECIAL_HEADERS
from app.core.engine.request import EngineRequest
from app.core.protocol.common import ItemList, usage_of
from app.core.text.base import TokenizerError
from app.extensions.pooling.runner import PoolingRunner, PromptWriter
from app.extensions.pooling.vectors import packing

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from app.core.api.identity import ResponseMeta
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import PendingResponse, Response

MAX_CHARACTERS = 256
"""Longest plain text: its vector takes at most three milliseconds.

That is for new words, 4,096 dimensions, and characters whose normalization makes two of each.
"""
MAX_DIMENSIONS = 4096
"""Longest plain vector: writing it takes 0.1 ms."""


class PlainEmbedding(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The body of a plain request for an embedding."""

    input: Annotated[str, Meta(min_length=1, max_length=MAX_CHARACTERS)]
    model: str | None = None
    user: str | None = None
    encoding_format: Literal["float", "base64"] = "float"


class RecognisedEmbedding(NamedTuple):
    """A plain request, and the token ids of its text."""

    request: PlainEmbedding
    prompt_ids: Sequence[int]


class PlainEmbeddings:
    """Answers plain requests: see `app.core.server.http.route.PlainHandler`."""

    special_headers = SPECIAL_HEADERS

    def __init__(self, runner: PoolingRunner) -> None:
        self._runner = runner
        self._pipeline = runner.pipeline
        self._decode = msgspec.json.Decoder(PlainEmbedding).decode
        self._model = runner.pipeline.models.names[0]
        self._names: frozenset[str | None] = frozenset()
        """Names of the served model; while empty, no request is plain."""

    def refresh(self) -> None:
        """Decides if any request can be plain now, under the settings in force."""
        pipeline = self._pipeline
        is_special = (
            pipeline.tokenizer.vocab_size is None  # a remote tokenizer, which takes waiting
            or self._runner.model.dimensions > MAX_DIMENSIONS
            or not pipeline.keeps_fast_path()
        )
        self._names = frozenset()
        if not is_special:
            self._names = frozenset((None, "", *pipeline.models.names))

    def recognise(self, body: bytes) -> RecognisedEmbedding | None:
        """Returns the request in `body`; None, with nothing drawn or counted, when not plain."""
        if self._pipeline.scripts is not None:
            return None
        try:
            request = self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if request.model not in self._names:
            return None
        try:
            prompt_ids = self._pipeline.tokenizer.encode(request.input, True)
        except TokenizerError:
            return None
        if not 0 < len(prompt_ids) <= self._pipeline.limits.max_model_len:
            return None
        return RecognisedEmbedding(request, prompt_ids)

    def answer(
        self, context: RequestContext, recognised: RecognisedEmbedding
    ) -> Response | PendingResponse:
        """Answers a recognised request."""
        pipeline = self._pipeline
        pipeline.responder.engine.check_accepting(1)
        meta = pipeline.identity.response_meta("embd", context, "", self._model)
        engine_request = EngineRequest(
            request_id=meta.id,
            index=0,
            model=self._model,
            prompt_ids=recognised.prompt_ids,
            echo_text="",
            max_tokens=0,
            arrival_s=context.arrival_s,
            observers=context.observers,
            delays=context.delays,
        )
        # In the connection's turn: a burst of prompts that end together must not delay streams.
        vector = self._runner.model.vector(recognised.request.input, activation=None)
        return pipeline.responder.respond_soon(
            (engine_request,),
            EmbeddingWriter(self._runner, meta, recognised, vector),
            stream=False,
            context=context,
        )


class EmbeddingWriter(PromptWriter):
    """Writes the answer to a plain request, once its prompt has run."""

    def __init__(
        self,
        runner: PoolingRunner,
        meta: ResponseMeta,
        recognised: RecognisedEmbedding,
        vector: array[float],
    ) -> None:
        super().__init__()
        self._runner = runner
        self._meta = meta
        self._recognised = recognised
        self._vector = vector

    def body(self) -> bytes:
        """Returns the answer as JSON.

        Raises:
            AbortedError: for a prompt that an operator has ended.
        """
        super().body()
        request, prompt_ids = self._recognised
        vector = self._vector
        value: list[float] | str
        if request.encoding_format == "float":
            value = vector.tolist()
        else:
            pack = packing("float32", "native", self._runner.pace)
            value = b64encode(pack(vector)).decode()
        data: list[Any] = [{"index": 0, "object": "embedding", "embedding": value}]
        answer = ItemList(
            id=self._meta.id,
            created=self._meta.created,
            model=self._meta.model,
            data=data,
            usage=usage_of(len(prompt_ids), 0),
        )
        return self._runner.encode(answer)
