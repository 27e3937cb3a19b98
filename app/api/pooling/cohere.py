"""POST /v2/embed: vectors in several forms at once, as Cohere's SDK wants them."""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET, Raw

from app.api.pooling.runner import PoolingJob, PoolingRunner
from app.api.pooling.writer import Pooled
from app.faults.damage import damage
from app.faults.injector import fault_of
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response, json_response
from app.http.route import Handler
from app.pooling.numbers import packing
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

Embed = Callable[[EmbeddingRequest, RequestContext], tuple[PoolingJob, Pooled]]


def cohere_embeddings(runner: PoolingRunner, embed: Embed, model: str) -> Handler:
    frontend, instructions = runner.frontend, task_instructions(Path(model))

    def create_cohere_embeddings(context: RequestContext) -> Response:
        """A vector for each text, image or mixed input, in every form that is asked for."""
        request = frontend.decode(context, CohereEmbedRequest)
        frontend.models.resolve(request.model)
        instruction = _instruction(instructions, request.input_type)
        renders = bool(instruction) and _renders_chats(runner)
        job, pooled = embed(request.as_embedding(instruction, renders), context)
        most, longest = request.max_tokens, max(map(len, job.inputs))
        if request.truncate == "NONE" and most is not None and longest > most:
            raise bad_request(f"an input of {longest} tokens is longer than max_tokens={most}")
        pooled.check_size()
        vectors = [row for rows in pooled.inputs for row in rows]
        images = pooled.tokens if request.has_images else 0
        answer = CohereEmbedResponse(
            id=job.meta.id,
            embeddings=_by_type(vectors, request.embedding_types or ["float"], runner),
            texts=UNSET if request.texts is None else request.texts,
            meta=CohereMeta(ApiVersion(), BilledUnits(pooled.tokens - images, images)),
        )
        return damage(json_response(answer, 200, frontend.responder.headers), fault_of(context), context)

    return create_cohere_embeddings


def task_instructions(folder: Path) -> Mapping[str, str] | None:
    """The instruction of each input type that a model's folder names; None without the folder."""
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
    """The text in front of an input. A model whose files are not here takes every input type."""
    if input_type is None or known is None:
        return ""
    if input_type not in known:
        supported = ", ".join(sorted(known)) or "none, this model defines no instructions"
        raise bad_request(f"Unsupported input_type {input_type!r}; supported: {supported}")
    return known[input_type]


def _renders_chats(runner: PoolingRunner) -> bool:
    try:
        runner.frontend.tokenizer.render_chat([{"role": "user", "content": "x"}])
    except TokenizerError:
        return False
    return True


def _by_type(
    vectors: Sequence[array[float]], kinds: Sequence[str], runner: PoolingRunner
) -> EmbeddingsByType:
    made, pack = EmbeddingsByType(), packing("float32", "little", runner.pace)
    if "float" in kinds:
        made.float_ = Raw(b"[" + b",".join(encode(row.tolist()) for row in runner.paced(vectors)) + b"]")
    if "base64" in kinds:
        made.base64 = [b64encode(pack(row)).decode() for row in runner.paced(vectors)]
    if "binary" in kinds or "ubinary" in kinds:
        packed = [_signs(row) for row in runner.paced(vectors)]
        made.ubinary = packed if "ubinary" in kinds else UNSET
        made.binary = [[byte - 128 for byte in row] for row in packed] if "binary" in kinds else UNSET
    return made


def _signs(vector: array[float]) -> list[int]:
    """A bit for each number, 1 unless it is negative, eight to a byte, the first one highest."""
    if len(vector) % 8:
        raise bad_request(f"binary embeddings need a multiple of 8 dimensions, got {len(vector)}")
    bits = int("".join("1" if number >= 0 else "0" for number in vector), 2)
    return list(bits.to_bytes(len(vector) // 8, "big"))
