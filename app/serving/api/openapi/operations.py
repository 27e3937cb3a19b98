"""Body, answer, query and example of each route, by the structs of the protocol.

A served route that is missing here fails a test (tests/surface/test_openapi.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from app.serving.api import models, tokens
from app.serving.api.admin import lifecycle
from app.serving.api.admin.reports import ANY_METHOD
from app.serving.faults.audit import AuditReport
from app.serving.protocol import (
    admin,
    anthropic,
    generate,
    label_reads,
    pooling,
    responses,
    tokenize,
)
from app.serving.protocol.chat import BatchChatRequest, ChatCompletion, ChatCompletionRequest
from app.serving.protocol.completions import Completion, CompletionRequest

JSON, TEXT, EVENTS, BYTES = "application/json", "text/plain", "text/event-stream", "application/octet-stream"
HELLO = [{"role": "user", "content": "hi"}]
ANYTHING = dict[str, object]


class ErrorInfo(Struct):
    """An error; `param` is the field, `code` the status."""

    message: str
    type: str
    param: str | None
    code: int


class Error(Struct):
    """The body of an error."""

    error: ErrorInfo


class RoutingError(Struct):
    """The body when there is no such route, or not with this method."""

    detail: str


class RerankedDocument(Struct):
    """One document and how well it fits."""

    index: int
    relevance_score: float


class Reranking(Struct):
    """Documents, the best first."""

    id: str
    model: str
    results: list[RerankedDocument]


class Operation(Struct, frozen=True):
    """One method of one path."""

    body: Any = None
    """Type of the body; None for none."""
    example: Mapping[str, object] | None = None
    """A body that succeeds; an empty `model` stands for the served one."""
    answer: Any = None
    """Type of the JSON of a success; None for no JSON."""
    media: tuple[str, ...] = ()
    """Other media types of a success."""
    needs_body: bool = True
    status: int = 200
    """Status of a success."""
    query: type[Struct] | Mapping[str, Any] = {}
    """A struct, or types by name."""
    error: type[Struct] = Error


_CHAT = {"messages": HELLO, "max_tokens": 8}
_TEXT = {"prompt": "hello", "max_tokens": 8}
_MESSAGE = {"model": "", "messages": HELLO, "max_tokens": 8}
_SAID = {"request_id": "x", "choices": [{"index": 0, "token_ids": [5, 6]}]}
_PAIR = {"queries": "what is a cat", "documents": ["an animal", "a tool"]}
_DOCUMENTS = {"query": "what is a cat", "documents": ["an animal", "a tool"]}
_SCORE = Operation(body=pooling.ScoreRequest, example=_PAIR, answer=pooling.ItemList)
_RERANK = Operation(body=pooling.RerankRequest, example=_DOCUMENTS, answer=Reranking)
_ABORT = Operation(
    body=generate.AbortRequest, needs_body=False, example={"request_ids": ["cmpl-1"]}, answer=ANYTHING
)


def _each(operations: str, told: Operation) -> Mapping[str, Operation]:
    """Returns the same description for each of the comma-separated `operations`."""
    return dict.fromkeys(operations.split(", "), told)


OPERATIONS: Mapping[str, Operation] = {
    "POST /v1/chat/completions": Operation(ChatCompletionRequest, _CHAT, ChatCompletion, (EVENTS,)),
    "POST /v1/chat/completions/batch": Operation(
        BatchChatRequest, {"messages": [HELLO], "max_tokens": 8}, ChatCompletion
    ),
    "POST /v1/completions": Operation(CompletionRequest, _TEXT, Completion, (EVENTS,)),
    "POST /v1/responses": Operation(
        responses.ResponsesRequest, {"input": "hello"}, responses.ResponseObject, (EVENTS,)
    ),
    "GET /v1/responses/{response_id}": Operation(
        answer=responses.ResponseObject, media=(EVENTS,), query={"stream": bool, "starting_after": int}
    ),
    "POST /v1/responses/{response_id}/cancel": Operation(answer=responses.ResponseObject),
    "POST /v1/messages": Operation(
        anthropic.MessagesRequest,
        _MESSAGE,
        anthropic.MessageResponse,
        (EVENTS,),
        error=anthropic.ErrorResponse,
    ),
    "POST /v1/messages/count_tokens": Operation(
        anthropic.CountTokensRequest,
        {"model": "", "messages": HELLO},
        ANYTHING,
        error=anthropic.ErrorResponse,
    ),
    "POST /v1/chat/completions/render": Operation(ChatCompletionRequest, _CHAT, ANYTHING),
    "POST /v1/completions/render": Operation(CompletionRequest, _TEXT, list[ANYTHING]),
    "POST /v1/messages/render": Operation(anthropic.MessagesRequest, _MESSAGE, ANYTHING),
    "POST /v1/responses/render": Operation(responses.ResponsesRequest, {"input": "hello"}, ANYTHING),
    "POST /v1/chat/completions/derender": Operation(
        generate.DerenderChatRequest | generate.DerenderStreamRequest, {"generate_response": _SAID}, ANYTHING
    ),
    "POST /v1/completions/derender": Operation(
        generate.DerenderCompletionRequest | generate.DerenderStreamRequest,
        {"generate_responses": [_SAID]},
        ANYTHING,
    ),
    "POST /inference/v1/generate": Operation(
        generate.GenerateRequest,
        {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 5}},
        generate.GenerateResponse,
        (EVENTS,),
    ),
    **_each("POST /abort_requests, POST /inference/v1/abort_requests", _ABORT),
    "POST /v1/embeddings": Operation(
        pooling.EmbeddingRequest, {"input": "hello"}, pooling.ItemList, (BYTES,)
    ),
    "POST /pooling": Operation(pooling.PoolingRequest, {"input": "hello"}, pooling.ItemList, (BYTES,)),
    "POST /v2/embed": Operation(pooling.CohereEmbedRequest, {"texts": ["hello"]}, ANYTHING),
    "POST /classify": Operation(pooling.ClassificationRequest, {"input": "hello"}, pooling.ItemList),
    **_each("POST /score, POST /v1/score", _SCORE),
    **_each("POST /rerank, POST /v1/rerank, POST /v2/rerank", _RERANK),
    "POST /generative_scoring": Operation(
        label_reads.GenerativeScoringRequest,
        {"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]},
        label_reads.ScoreList,
    ),
    "POST /v1/systemone": Operation(
        label_reads.DecisionRequest,
        {"state": "a cat", "questions": {"alive": {"type": "noul", "instructions": "Is it alive?"}}},
        label_reads.Decisions,
    ),
    "POST /invocations": Operation(ANYTHING, _CHAT, ANYTHING, (EVENTS, BYTES)),
    "POST /scale_elastic_ep": Operation(ANYTHING, {"new_data_parallel_size": 1}, dict[str, str]),
    **_each(
        "POST /is_scaling_elastic_ep, GET /is_sleeping, GET /is_paused",
        Operation(answer=dict[str, bool]),
    ),
    "GET /v1/models": Operation(answer=models.ModelList | models.AnthropicModelList),
    "POST /v1/load_lora_adapter": Operation(
        admin.LoadAdapterRequest, {"lora_name": "sql", "lora_path": "/sql"}, media=(TEXT,)
    ),
    "POST /v1/unload_lora_adapter": Operation(
        admin.UnloadAdapterRequest, {"lora_name": "sql"}, media=(TEXT,)
    ),
    "POST /adapters": Operation(admin.RegisterAdapterRequest, {"name": "sql", "src": "/sql"}, media=(TEXT,)),
    "DELETE /adapters/{adapter_name}": Operation(media=(TEXT,)),
    "POST /tokenize": Operation(tokenize.TokenizeRequest, {"prompt": "hello"}, tokens.TokensAnswer),
    "POST /detokenize": Operation(tokenize.DetokenizeRequest, {"tokens": [120, 121]}, dict[str, str]),
    **_each(
        "GET /tokenizer_info, GET /, GET /openapi.json, GET /kv_event_sources, GET /kv/index, "
        "GET /admin/script, DELETE /admin/script, GET /admin/memory, GET /admin/plugins",
        Operation(answer=ANYTHING),
    ),
    **_each(
        "GET /health, GET /health/ready, GET /ready, GET /ping, POST /ping, POST /reset_mm_cache, "
        "POST /reset_encoder_cache, POST /stop_profile",
        Operation(),
    ),
    **_each(
        "GET /version, GET /admin/config/live, POST /release_kv_cache_memory, POST /resume, GET /weight_info",
        Operation(answer=dict[str, str]),
    ),
    "GET /load": Operation(answer=dict[str, int]),
    "GET /stats": Operation(answer=dict[str, float]),
    **{f"{method} /metrics": Operation(media=(TEXT,)) for method in ANY_METHOD if method != "HEAD"},
    **_each("GET /docs, GET /docs/oauth2-redirect, GET /redoc", Operation(media=("text/html",))),
    "GET /query": Operation(answer=dict[str, dict[str, str]]),
    "POST /score_completions": Operation(
        tokenize.ScoreTextRequest, {"prompt": "hello"}, dict[str, float] | None
    ),
    "POST /score_chat_completions": Operation(
        tokenize.ScoreChatRequest, {"messages": HELLO}, ANYTHING | None
    ),
    "POST /score_tokens": Operation(tokenize.ScoreTokensRequest, {"tokens": [1, 2, 3]}, ANYTHING),
    "POST /fake_metrics": Operation(ANYTHING, {"running-requests": 3}, status=204),
    "GET /admin/config": Operation(answer=ANYTHING, query={"ranks": Literal["all"]}),
    "POST /admin/config": Operation(
        ANYTHING, {"log-http": False}, ANYTHING, query={"check": bool, "ranks": Literal["all"]}
    ),
    "POST /admin/drain": Operation(answer=ANYTHING, query={"ranks": Literal["all"]}),
    "GET /admin/verdict": Operation(answer=AuditReport, query={"over": bool}),
    "DELETE /admin/verdict": Operation(answer=AuditReport),
    "POST /sleep": Operation(answer=ANYTHING, query=lifecycle.SleepQuery),
    "POST /wake_up": Operation(answer=ANYTHING, query={"tags": list[str]}),
    "POST /pause": Operation(answer=dict[str, str], query=lifecycle.PauseQuery),
    "POST /reset_prefix_cache": Operation(answer=dict[str, bool], query=lifecycle.ResetQuery),
    "GET /server_info": Operation(answer=ANYTHING, query=lifecycle.InfoQuery),
    "POST /init_weight_transfer_engine": Operation(
        admin.InitTransferRequest, {"init_info": {}}, dict[str, str]
    ),
    **_each(
        "POST /shutdown_weight_transfer_engine, POST /start_weight_update, POST /start_draft_weight_update",
        Operation(answer=dict[str, str]),
    ),
    "POST /update_weights": Operation(admin.UpdateWeightsRequest, {"update_info": {}}, dict[str, str]),
    "POST /finish_weight_update": Operation(
        admin.FinishUpdateRequest, {"weight_version": "2"}, dict[str, str], needs_body=False
    ),
    "POST /update_weight_version": Operation(admin.WeightVersionRequest, {"new_version": "2"}, ANYTHING),
    "POST /weight_checker": Operation(admin.WeightCheckRequest, {"action": "checksum"}, ANYTHING),
    "GET /get_world_size": Operation(answer=dict[str, int], query=admin.WorldSizeQuery),
    "POST /collective_rpc": Operation(ANYTHING, {"method": "sleep"}, ANYTHING),
    "POST /start_profile": Operation(admin.StartProfileRequest, {}, needs_body=False),
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]}
_MESSAGE_SCHEMA = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": {"type": "string"}, "content": _CONTENT},
}
_MESSAGES: dict[str, object] = {"type": "array", "items": _MESSAGE_SCHEMA}
REFINEMENTS: Mapping[tuple[type, str], dict[str, object]] = {
    (ChatCompletionRequest, "messages"): _MESSAGES,
    (BatchChatRequest, "messages"): {"type": "array", "items": _MESSAGES},
    (tokenize.TokenizeChatRequest, "messages"): _MESSAGES,
    (tokenize.ScoreChatRequest, "messages"): _MESSAGES,
}
"""Schemas of fields that the protocol only knows as objects."""
UNKNOWN = Operation(answer=None)
"""A route without a description, such as a plugin's: it takes and returns anything."""
