"""What each route takes and gives: the structs of the protocol, queries, an example.

A route that is served and is not here fails a test (tests/surface/test_openapi.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from app.api.admin.reports import ANY_METHOD
from app.faults.audit_trail import AuditReport
from app.protocol.admin import (
    FinishUpdateRequest,
    InitTransferRequest,
    LoadAdapterRequest,
    RegisterAdapterRequest,
    StartProfileRequest,
    UnloadAdapterRequest,
    UpdateWeightsRequest,
    WeightCheckRequest,
    WeightVersionRequest,
)
from app.protocol.anthropic import CountTokensRequest, ErrorResponse, MessageResponse, MessagesRequest
from app.protocol.chat import BatchChatRequest, ChatCompletion, ChatCompletionRequest
from app.protocol.completions import Completion, CompletionRequest
from app.protocol.derender import DerenderChatRequest, DerenderCompletionRequest, DerenderStreamRequest
from app.protocol.generate import AbortRequest, GenerateRequest, GenerateResponse
from app.protocol.label_reads import DecisionRequest, Decisions, GenerativeScoringRequest, ScoreList
from app.protocol.pooling import (
    ClassificationRequest,
    CohereEmbedRequest,
    CohereEmbedResponse,
    EmbeddingRequest,
    ItemList,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from app.protocol.responses import ResponseObject, ResponsesRequest
from app.protocol.tokenize import (
    DetokenizeRequest,
    ScoreChatRequest,
    ScoreTextRequest,
    ScoreTokensRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)

JSON, TEXT, EVENTS, BYTES = "application/json", "text/plain", "text/event-stream", "application/octet-stream"
HELLO = [{"role": "user", "content": "hi"}]
Schema = Mapping[str, Any]


ANYTHING = dict[str, object]


class ErrorInfo(Struct):
    """What is wrong; `param` is the field, `code` the status."""

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


class Model(Struct):
    """A model or an adapter that is served."""

    id: str
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    permission: list[ANYTHING]
    object: str = "model"


class ModelList(Struct):
    """What is served."""

    object: str
    data: list[Model]


class AnthropicModel(Struct):
    """A model or an adapter, as Anthropic's SDK wants it."""

    id: str
    display_name: str
    created_at: str
    lifecycle: str
    max_input_tokens: int
    max_tokens: int
    type: str = "model"


class AnthropicModelList(Struct):
    """What is served, told to a client that sends `anthropic-version`."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str
    last_id: str


class Tokens(Struct):
    """The tokens of a text or a conversation."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


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
    """A body that succeeds; a `model` that is empty is the one that is served."""
    answer: Any = None
    """Type of the JSON of a success; None for no JSON."""
    media: tuple[str, ...] = ()
    """Other forms that a success may have."""
    needs_body: bool = True
    status: int = 200
    """Of a success."""
    query: Mapping[str, Schema] = {}
    error: type[Struct] = Error


NUMBER: Schema = {"type": "integer"}
TRUTH: Schema = {"type": "boolean"}
MODE: Schema = {"type": "string", "enum": ["abort", "wait", "keep"]}
RANKS: Schema = {"type": "string", "enum": ["all"]}

_CHAT = {"messages": HELLO, "max_tokens": 8}
_TEXT = {"prompt": "hello", "max_tokens": 8}
_MESSAGE = {"model": "", "messages": HELLO, "max_tokens": 8}
_SAID = {"request_id": "x", "choices": [{"index": 0, "token_ids": [5, 6]}]}
_PAIR = {"queries": "what is a cat", "documents": ["an animal", "a tool"]}
_DOCUMENTS = {"query": "what is a cat", "documents": ["an animal", "a tool"]}
_SCORE = Operation(body=ScoreRequest, example=_PAIR, answer=ItemList)
_RERANK = Operation(body=RerankRequest, example=_DOCUMENTS, answer=Reranking)
_ABORT = Operation(body=AbortRequest, needs_body=False, example={"request_ids": ["cmpl-1"]}, answer=ANYTHING)


def _each(operations: str, told: Operation) -> Mapping[str, Operation]:
    """Returns what is told of all `operations`, which have commas between them."""
    return dict.fromkeys(operations.split(", "), told)


OPERATIONS: Mapping[str, Operation] = {
    "POST /v1/chat/completions": Operation(ChatCompletionRequest, _CHAT, ChatCompletion, (EVENTS,)),
    "POST /v1/chat/completions/batch": Operation(
        BatchChatRequest, {"messages": [HELLO], "max_tokens": 8}, ChatCompletion
    ),
    "POST /v1/completions": Operation(CompletionRequest, _TEXT, Completion, (EVENTS,)),
    "POST /v1/responses": Operation(ResponsesRequest, {"input": "hello"}, ResponseObject, (EVENTS,)),
    "GET /v1/responses/{response_id}": Operation(
        answer=ResponseObject, media=(EVENTS,), query={"stream": TRUTH, "starting_after": NUMBER}
    ),
    "POST /v1/responses/{response_id}/cancel": Operation(answer=ResponseObject),
    "POST /v1/messages": Operation(
        MessagesRequest, _MESSAGE, MessageResponse, (EVENTS,), error=ErrorResponse
    ),
    "POST /v1/messages/count_tokens": Operation(
        CountTokensRequest, {"model": "", "messages": HELLO}, ANYTHING, error=ErrorResponse
    ),
    "POST /v1/chat/completions/render": Operation(ChatCompletionRequest, _CHAT, ANYTHING),
    "POST /v1/completions/render": Operation(CompletionRequest, _TEXT, list[ANYTHING]),
    "POST /v1/messages/render": Operation(MessagesRequest, _MESSAGE, ANYTHING),
    "POST /v1/responses/render": Operation(ResponsesRequest, {"input": "hello"}, ANYTHING),
    "POST /v1/chat/completions/derender": Operation(
        DerenderChatRequest | DerenderStreamRequest, {"generate_response": _SAID}, ANYTHING
    ),
    "POST /v1/completions/derender": Operation(
        DerenderCompletionRequest | DerenderStreamRequest, {"generate_responses": [_SAID]}, ANYTHING
    ),
    "POST /inference/v1/generate": Operation(
        GenerateRequest,
        {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 5}},
        GenerateResponse,
        (EVENTS,),
    ),
    "POST /abort_requests": _ABORT,
    "POST /inference/v1/abort_requests": _ABORT,
    "POST /v1/embeddings": Operation(EmbeddingRequest, {"input": "hello"}, ItemList, (BYTES,)),
    "POST /pooling": Operation(PoolingRequest, {"input": "hello"}, ItemList, (BYTES,)),
    "POST /v2/embed": Operation(CohereEmbedRequest, {"texts": ["hello"]}, CohereEmbedResponse),
    "POST /classify": Operation(ClassificationRequest, {"input": "hello"}, ItemList),
    "POST /score": _SCORE,
    "POST /v1/score": _SCORE,
    **_each("POST /rerank, POST /v1/rerank, POST /v2/rerank", _RERANK),
    "POST /generative_scoring": Operation(
        GenerativeScoringRequest, {"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]}, ScoreList
    ),
    "POST /v1/systemone": Operation(
        DecisionRequest,
        {"state": "a cat", "questions": {"alive": {"type": "noul", "instructions": "Is it alive?"}}},
        Decisions,
    ),
    "POST /invocations": Operation(ANYTHING, _CHAT, ANYTHING, (EVENTS, BYTES)),
    "POST /scale_elastic_ep": Operation(ANYTHING, {"new_data_parallel_size": 1}, dict[str, str]),
    **_each(
        "POST /is_scaling_elastic_ep, GET /is_sleeping, GET /is_paused",
        Operation(answer=dict[str, bool]),
    ),
    "GET /v1/models": Operation(answer=ModelList | AnthropicModelList),
    "POST /v1/load_lora_adapter": Operation(
        LoadAdapterRequest, {"lora_name": "sql", "lora_path": "/sql"}, media=(TEXT,)
    ),
    "POST /v1/unload_lora_adapter": Operation(UnloadAdapterRequest, {"lora_name": "sql"}, media=(TEXT,)),
    "POST /adapters": Operation(RegisterAdapterRequest, {"name": "sql", "src": "/sql"}, media=(TEXT,)),
    "DELETE /adapters/{adapter_name}": Operation(media=(TEXT,)),
    "POST /tokenize": Operation(TokenizeRequest, {"prompt": "hello"}, Tokens),
    "POST /detokenize": Operation(DetokenizeRequest, {"tokens": [120, 121]}, dict[str, str]),
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
    "POST /score_completions": Operation(ScoreTextRequest, {"prompt": "hello"}, dict[str, float] | None),
    "POST /score_chat_completions": Operation(ScoreChatRequest, {"messages": HELLO}, ANYTHING | None),
    "POST /score_tokens": Operation(ScoreTokensRequest, {"tokens": [1, 2, 3]}, ANYTHING),
    "POST /fake_metrics": Operation(ANYTHING, {"running-requests": 3}, status=204),
    "GET /admin/config": Operation(answer=ANYTHING, query={"ranks": RANKS}),
    "POST /admin/config": Operation(
        ANYTHING, {"log-http": False}, ANYTHING, query={"check": TRUTH, "ranks": RANKS}
    ),
    "POST /admin/drain": Operation(answer=ANYTHING, query={"ranks": RANKS}),
    "GET /admin/verdict": Operation(answer=AuditReport, query={"over": TRUTH}),
    "DELETE /admin/verdict": Operation(answer=AuditReport),
    "POST /sleep": Operation(answer=ANYTHING, query={"level": NUMBER, "mode": MODE}),
    "POST /wake_up": Operation(
        answer=ANYTHING, query={"tags": {"type": "array", "items": {"type": "string"}}}
    ),
    "POST /pause": Operation(answer=dict[str, str], query={"mode": MODE, "clear_cache": TRUTH}),
    "POST /reset_prefix_cache": Operation(
        answer=dict[str, bool], query={"reset_running_requests": TRUTH, "reset_external": TRUTH}
    ),
    "GET /server_info": Operation(
        answer=ANYTHING, query={"config_format": {"type": "string", "enum": ["text", "json"]}}
    ),
    "POST /init_weight_transfer_engine": Operation(InitTransferRequest, {"init_info": {}}, dict[str, str]),
    **_each(
        "POST /shutdown_weight_transfer_engine, POST /start_weight_update, POST /start_draft_weight_update",
        Operation(answer=dict[str, str]),
    ),
    "POST /update_weights": Operation(UpdateWeightsRequest, {"update_info": {}}, dict[str, str]),
    "POST /finish_weight_update": Operation(
        FinishUpdateRequest, {"weight_version": "2"}, dict[str, str], needs_body=False
    ),
    "POST /update_weight_version": Operation(WeightVersionRequest, {"new_version": "2"}, ANYTHING),
    "POST /weight_checker": Operation(WeightCheckRequest, {"action": "checksum"}, ANYTHING),
    "GET /get_world_size": Operation(answer=dict[str, int], query={"include_dp": TRUTH}),
    "POST /collective_rpc": Operation(ANYTHING, {"method": "sleep"}, ANYTHING),
    "POST /start_profile": Operation(StartProfileRequest, {}, needs_body=False),
}
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]}
_MESSAGE_SCHEMA = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": {"type": "string"}, "content": _CONTENT},
}
_MESSAGES = {"type": "array", "items": _MESSAGE_SCHEMA}
REFINEMENTS: Mapping[tuple[type, str], dict[str, Any]] = {
    (ChatCompletionRequest, "messages"): _MESSAGES,
    (BatchChatRequest, "messages"): {"type": "array", "items": _MESSAGES},
    (TokenizeChatRequest, "messages"): _MESSAGES,
    (ScoreChatRequest, "messages"): _MESSAGES,
}
"""What fields hold of which the protocol only says that they are objects."""
UNKNOWN = Operation(answer=None)
"""Of a route that nobody has described: it takes and gives anything."""
