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
from app.protocol.anthropic import CountTokensRequest, MessagesRequest
from app.protocol.anthropic_response import ErrorResponse, MessageResponse
from app.protocol.chat import BatchChatRequest, ChatCompletionRequest
from app.protocol.chat_response import ChatCompletion
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
from app.protocol.response_object import ResponseObject
from app.protocol.responses import ResponsesRequest
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


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path."""

    body: Any = None
    """Type of the body; None for none."""
    needs_body: bool = True
    example: Mapping[str, object] | None = None
    """A body that succeeds; a `model` that is empty is the one that is served."""
    answer: Any = None
    """Type of the JSON of a success; None for no JSON."""
    media: tuple[str, ...] = ()
    """Other forms that a success may have."""
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
_EMPTY = Operation()
_TOLD = Operation(answer=dict[str, str])
_SCORE = Operation(body=ScoreRequest, example=_PAIR, answer=ItemList)
_RERANK = Operation(body=RerankRequest, example=_DOCUMENTS, answer=Reranking)
_ABORT = Operation(body=AbortRequest, needs_body=False, example={"request_ids": ["cmpl-1"]}, answer=ANYTHING)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        body=ChatCompletionRequest, example=_CHAT, answer=ChatCompletion, media=(EVENTS,)
    ),
    ("POST", "/v1/chat/completions/batch"): Operation(
        body=BatchChatRequest, example={"messages": [HELLO], "max_tokens": 8}, answer=ChatCompletion
    ),
    ("POST", "/v1/completions"): Operation(
        body=CompletionRequest, example=_TEXT, answer=Completion, media=(EVENTS,)
    ),
    ("POST", "/v1/responses"): Operation(
        body=ResponsesRequest, example={"input": "hello"}, answer=ResponseObject, media=(EVENTS,)
    ),
    ("GET", "/v1/responses/{response_id}"): Operation(
        answer=ResponseObject, media=(EVENTS,), query={"stream": TRUTH, "starting_after": NUMBER}
    ),
    ("POST", "/v1/responses/{response_id}/cancel"): Operation(answer=ResponseObject),
    ("POST", "/v1/messages"): Operation(
        body=MessagesRequest,
        example=_MESSAGE,
        answer=MessageResponse,
        media=(EVENTS,),
        error=ErrorResponse,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        body=CountTokensRequest,
        example={"model": "", "messages": HELLO},
        answer=ANYTHING,
        error=ErrorResponse,
    ),
    ("POST", "/v1/chat/completions/render"): Operation(
        body=ChatCompletionRequest, example=_CHAT, answer=ANYTHING
    ),
    ("POST", "/v1/completions/render"): Operation(
        body=CompletionRequest, example=_TEXT, answer=list[ANYTHING]
    ),
    ("POST", "/v1/messages/render"): Operation(body=MessagesRequest, example=_MESSAGE, answer=ANYTHING),
    ("POST", "/v1/responses/render"): Operation(
        body=ResponsesRequest, example={"input": "hello"}, answer=ANYTHING
    ),
    ("POST", "/v1/chat/completions/derender"): Operation(
        body=DerenderChatRequest | DerenderStreamRequest,
        example={"generate_response": _SAID},
        answer=ANYTHING,
    ),
    ("POST", "/v1/completions/derender"): Operation(
        body=DerenderCompletionRequest | DerenderStreamRequest,
        example={"generate_responses": [_SAID]},
        answer=ANYTHING,
    ),
    ("POST", "/inference/v1/generate"): Operation(
        body=GenerateRequest,
        example={"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 5}},
        answer=GenerateResponse,
        media=(EVENTS,),
    ),
    ("POST", "/abort_requests"): _ABORT,
    ("POST", "/inference/v1/abort_requests"): _ABORT,
    ("POST", "/v1/embeddings"): Operation(
        body=EmbeddingRequest, example={"input": "hello"}, answer=ItemList, media=(BYTES,)
    ),
    ("POST", "/pooling"): Operation(
        body=PoolingRequest, example={"input": "hello"}, answer=ItemList, media=(BYTES,)
    ),
    ("POST", "/v2/embed"): Operation(
        body=CohereEmbedRequest, example={"texts": ["hello"]}, answer=CohereEmbedResponse
    ),
    ("POST", "/classify"): Operation(body=ClassificationRequest, example={"input": "hello"}, answer=ItemList),
    ("POST", "/score"): _SCORE,
    ("POST", "/v1/score"): _SCORE,
    ("POST", "/rerank"): _RERANK,
    ("POST", "/v1/rerank"): _RERANK,
    ("POST", "/v2/rerank"): _RERANK,
    ("POST", "/generative_scoring"): Operation(
        body=GenerativeScoringRequest,
        example={"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]},
        answer=ScoreList,
    ),
    ("POST", "/v1/systemone"): Operation(
        body=DecisionRequest,
        example={"state": "a cat", "questions": {"alive": {"type": "noul", "instructions": "Is it alive?"}}},
        answer=Decisions,
    ),
    ("POST", "/invocations"): Operation(body=ANYTHING, example=_CHAT, answer=ANYTHING, media=(EVENTS, BYTES)),
    ("POST", "/scale_elastic_ep"): Operation(
        body=ANYTHING, example={"new_data_parallel_size": 1}, answer=dict[str, str]
    ),
    ("POST", "/is_scaling_elastic_ep"): Operation(answer=dict[str, bool]),
    ("GET", "/v1/models"): Operation(answer=ModelList | AnthropicModelList),
    ("POST", "/v1/load_lora_adapter"): Operation(
        body=LoadAdapterRequest, example={"lora_name": "sql", "lora_path": "/sql"}, media=(TEXT,)
    ),
    ("POST", "/v1/unload_lora_adapter"): Operation(
        body=UnloadAdapterRequest, example={"lora_name": "sql"}, media=(TEXT,)
    ),
    ("POST", "/adapters"): Operation(
        body=RegisterAdapterRequest, example={"name": "sql", "src": "/sql"}, media=(TEXT,)
    ),
    ("DELETE", "/adapters/{adapter_name}"): Operation(media=(TEXT,)),
    ("POST", "/tokenize"): Operation(body=TokenizeRequest, example={"prompt": "hello"}, answer=Tokens),
    ("POST", "/detokenize"): Operation(
        body=DetokenizeRequest, example={"tokens": [120, 121]}, answer=dict[str, str]
    ),
    ("GET", "/tokenizer_info"): Operation(answer=ANYTHING),
    ("GET", "/health"): _EMPTY,
    ("GET", "/health/ready"): _EMPTY,
    ("GET", "/ready"): _EMPTY,
    ("GET", "/ping"): _EMPTY,
    ("POST", "/ping"): _EMPTY,
    ("GET", "/version"): Operation(answer=dict[str, str]),
    ("GET", "/load"): Operation(answer=dict[str, int]),
    ("GET", "/stats"): Operation(answer=dict[str, float]),
    **{(method, "/metrics"): Operation(media=(TEXT,)) for method in ANY_METHOD if method != "HEAD"},
    ("GET", "/"): Operation(answer=ANYTHING),
    ("GET", "/openapi.json"): Operation(answer=ANYTHING),
    **{
        ("GET", path): Operation(media=("text/html",))
        for path in ("/docs", "/docs/oauth2-redirect", "/redoc")
    },
    ("GET", "/query"): Operation(answer=dict[str, dict[str, str]]),
    ("GET", "/kv_event_sources"): Operation(answer=ANYTHING),
    ("GET", "/kv/index"): Operation(answer=ANYTHING),
    ("POST", "/score_completions"): Operation(
        body=ScoreTextRequest, example={"prompt": "hello"}, answer=dict[str, float] | None
    ),
    ("POST", "/score_chat_completions"): Operation(
        body=ScoreChatRequest, example={"messages": HELLO}, answer=ANYTHING | None
    ),
    ("POST", "/score_tokens"): Operation(
        body=ScoreTokensRequest, example={"tokens": [1, 2, 3]}, answer=ANYTHING
    ),
    ("POST", "/fake_metrics"): Operation(body=ANYTHING, example={"running-requests": 3}, status=204),
    ("GET", "/admin/config"): Operation(answer=ANYTHING, query={"ranks": RANKS}),
    ("GET", "/admin/config/live"): Operation(answer=dict[str, str]),
    ("POST", "/admin/config"): Operation(
        body=ANYTHING,
        example={"log-http": False},
        answer=ANYTHING,
        query={"check": TRUTH, "ranks": RANKS},
    ),
    ("POST", "/admin/drain"): Operation(answer=ANYTHING, query={"ranks": RANKS}),
    ("GET", "/admin/verdict"): Operation(answer=AuditReport, query={"over": TRUTH}),
    ("DELETE", "/admin/verdict"): Operation(answer=AuditReport),
    ("GET", "/admin/script"): Operation(answer=ANYTHING),
    ("DELETE", "/admin/script"): Operation(answer=ANYTHING),
    ("GET", "/admin/memory"): Operation(answer=ANYTHING),
    ("GET", "/admin/plugins"): Operation(answer=ANYTHING),
    ("POST", "/sleep"): Operation(answer=ANYTHING, query={"level": NUMBER, "mode": MODE}),
    ("POST", "/release_kv_cache_memory"): Operation(answer=dict[str, str]),
    ("POST", "/wake_up"): Operation(
        answer=ANYTHING, query={"tags": {"type": "array", "items": {"type": "string"}}}
    ),
    ("GET", "/is_sleeping"): Operation(answer=dict[str, bool]),
    ("POST", "/pause"): Operation(answer=dict[str, str], query={"mode": MODE, "clear_cache": TRUTH}),
    ("POST", "/resume"): Operation(answer=dict[str, str]),
    ("GET", "/is_paused"): Operation(answer=dict[str, bool]),
    ("POST", "/reset_prefix_cache"): Operation(
        answer=dict[str, bool], query={"reset_running_requests": TRUTH, "reset_external": TRUTH}
    ),
    ("POST", "/reset_mm_cache"): _EMPTY,
    ("POST", "/reset_encoder_cache"): _EMPTY,
    ("GET", "/server_info"): Operation(
        answer=ANYTHING, query={"config_format": {"type": "string", "enum": ["text", "json"]}}
    ),
    ("POST", "/init_weight_transfer_engine"): Operation(
        body=InitTransferRequest, example={"init_info": {}}, answer=dict[str, str]
    ),
    ("POST", "/shutdown_weight_transfer_engine"): _TOLD,
    ("POST", "/start_weight_update"): _TOLD,
    ("POST", "/start_draft_weight_update"): _TOLD,
    ("POST", "/update_weights"): Operation(
        body=UpdateWeightsRequest, example={"update_info": {}}, answer=dict[str, str]
    ),
    ("POST", "/finish_weight_update"): Operation(
        body=FinishUpdateRequest, needs_body=False, example={"weight_version": "2"}, answer=dict[str, str]
    ),
    ("POST", "/update_weight_version"): Operation(
        body=WeightVersionRequest, example={"new_version": "2"}, answer=ANYTHING
    ),
    ("GET", "/weight_info"): Operation(answer=dict[str, str]),
    ("POST", "/weight_checker"): Operation(
        body=WeightCheckRequest, example={"action": "checksum"}, answer=ANYTHING
    ),
    ("GET", "/get_world_size"): Operation(answer=dict[str, int], query={"include_dp": TRUTH}),
    ("POST", "/collective_rpc"): Operation(body=ANYTHING, example={"method": "sleep"}, answer=ANYTHING),
    ("POST", "/start_profile"): Operation(body=StartProfileRequest, needs_body=False, example={}),
    ("POST", "/stop_profile"): _EMPTY,
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
