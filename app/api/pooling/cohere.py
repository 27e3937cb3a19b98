"""POST /v2/embed: vectors in several forms at once, as Cohere's SDK wants them."""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET, Raw

from app.api.frontend import Frontend
from app.api.identity import ResponseMeta
from app.api.pooling.places import struck
from app.api.pooling.writer import Pooled, check_size
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response, json_response
from app.http.route import Handler
from app.pooling.numbers import Turns, packing
from app.protocol.common import encode
from app.protocol.pooling import (
    ApiVersion,
    BilledUnits,
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereMeta,
    EmbeddingRequest,
    EmbeddingsByType,
)
from app.tokenization import TokenizerError

INSTRUCTION_FILES = (("config.json", "task_instructions"), ("config_sentence_transformers.json", "prompts"))
"""Where a model's folder has the instructions of its input types, in vLLM's order."""


class Embedded(NamedTuple):
    """Vectors, and the tokens of the longest input."""

    meta: ResponseMeta
    pooled: Pooled
    longest: int


Embed = Callable[[EmbeddingRequest, RequestContext], Embedded | Response]


def cohere_embeddings(frontend: Frontend, embed: Embed, model: str) -> Handler:
    """The view of /v2/embed."""
    instructions = task_instructions(Path(model))

    def create_cohere_embeddings(context: RequestContext) -> Response:
        """A vector for each text, image or mixed input, in every form that is asked for."""
        asked = frontend.decode(context, CohereEmbedRequest)
        frontend.models.resolve(asked.model)
        instruction = _instruction(instructions, asked.input_type)
        has_template = bool(instruction) and _has_template(frontend)
        made = embed(asked.as_embedding(instruction, has_template), context)
        if isinstance(made, Response):
            return made
        most = asked.max_tokens
        if asked.truncate == "NONE" and most is not None and made.longest > most:
            raise bad_request(f"an input of {made.longest} tokens is longer than max_tokens={most}")
        answer = _answer(asked, made.meta, made.pooled)
        return struck(json_response(answer, 200, frontend.responder.headers), context)

    return create_cohere_embeddings


def task_instructions(folder: Path) -> Mapping[str, str] | None:
    """The instruction of each input type that a model's folder names; None when it is not here."""
    if not folder.is_dir():
        return None
    for name, key in INSTRUCTION_FILES:
        try:
            found = json.loads((folder / name).read_bytes()).get(key)
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(found, dict) and found:
            return {kind: text for kind, text in found.items() if isinstance(text, str)}
    return {}


def _instruction(known: Mapping[str, str] | None, input_type: str | None) -> str:
    """What goes in front of an input. A model whose files are not here takes every input type."""
    if input_type is None or known is None:
        return ""
    if input_type not in known:
        supported = ", ".join(sorted(known)) or "none, this model defines no instructions"
        raise bad_request(f"Unsupported input_type {input_type!r}; supported: {supported}")
    return known[input_type]


def _has_template(frontend: Frontend) -> bool:
    try:
        frontend.tokenizer.render_chat([{"role": "user", "content": "x"}])
    except TokenizerError:
        return False
    return True


def _answer(asked: CohereEmbedRequest, meta: ResponseMeta, pooled: Pooled) -> CohereEmbedResponse:
    check_size(pooled)
    turns = Turns()
    vectors = [row for rows in pooled.inputs for row in turns.each(rows, len)]
    images = pooled.tokens if asked.has_images else 0
    return CohereEmbedResponse(
        id=meta.id,
        embeddings=_typed(vectors, asked.embedding_types or ["float"], turns),
        texts=UNSET if asked.texts is None else asked.texts,
        meta=CohereMeta(ApiVersion(), BilledUnits(pooled.tokens - images, images)),
    )


def _typed(vectors: Sequence[array[float]], kinds: Sequence[str], turns: Turns) -> EmbeddingsByType:
    made = EmbeddingsByType()
    pack = packing("float32", "little")
    if "float" in kinds:
        made.float_ = Raw(
            b"[" + b",".join(encode(vector.tolist()) for vector in turns.each(vectors, len)) + b"]"
        )
    if "base64" in kinds:
        made.base64 = [b64encode(pack(vector)).decode() for vector in turns.each(vectors, len)]
    if "binary" in kinds or "ubinary" in kinds:
        packed = [_signs(vector) for vector in turns.each(vectors, len)]
        made.ubinary = packed if "ubinary" in kinds else UNSET
        made.binary = [[byte - 128 for byte in row] for row in packed] if "binary" in kinds else UNSET
    return made


def _signs(vector: array[float]) -> list[int]:
    """A bit for each number, 1 unless it is negative, eight to a byte, the first one highest."""
    if len(vector) % 8:
        raise bad_request(f"binary embeddings need a multiple of 8 dimensions, got {len(vector)}")
    bits = int("".join("1" if number >= 0 else "0" for number in vector), 2)
    return list(bits.to_bytes(len(vector) // 8, "big"))
