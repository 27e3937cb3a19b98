"""Bodies, answers and queries of routes, by the structs of the protocol.

Routes that are in no table take no body, and answer any JSON or text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, defstruct

from app.serving.api import label_reads, models
from app.serving.api.admin import lifecycle
from app.serving.api.chat import prompt
from app.serving.api.responses.routes import Retrieval
from app.serving.protocol import anthropic, generate, pooling, responses, tokenize
from app.serving.protocol.chat import BatchChatRequest, ChatCompletion, ChatCompletionRequest
from app.serving.protocol.common import ItemList
from app.serving.protocol.completions import Completion, CompletionRequest

Example = Mapping[str, object]
ANYTHING = dict[str, object]
HELLO = [{"role": "user", "content": "hi"}]
_CHAT: Example = {"messages": HELLO, "max_tokens": 8}
_TEXT: Example = {"prompt": "hello", "max_tokens": 8}
_MESSAGE: Example = {"model": "", "messages": HELLO, "max_tokens": 8}
_SAID: Example = {"request_id": "x", "choices": [{"index": 0, "token_ids": [5, 6]}]}
_PAIR: Example = {"queries": "what is a cat", "documents": ["an animal", "a tool"]}
_RANKED: Example = {"query": "what is a cat", "documents": ["an animal", "a tool"]}
_INPUT: Example = {"input": "hello"}
_GENERATE: Example = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 5}}
_READ: Example = {"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]}
_ALIVE: Example = {"type": "noul", "instructions": "Is it alive?"}
BODIES: Mapping[str, tuple[tuple[Any, ...], Example]] = {
    "/v1/chat/completions": ((ChatCompletionRequest,), _CHAT),
    "/v1/chat/completions/batch": ((BatchChatRequest,), {"messages": [HELLO], "max_tokens": 8}),
    "/v1/completions": ((CompletionRequest,), _TEXT),
    "/v1/responses": ((responses.ResponsesRequest,), _INPUT),
    "/v1/messages": ((anthropic.MessagesRequest,), _MESSAGE),
    "/v1/messages/count_tokens": ((anthropic.CountTokensRequest,), {"model": "", "messages": HELLO}),
    "/v1/chat/completions/render": ((ChatCompletionRequest,), _CHAT),
    "/v1/completions/render": ((CompletionRequest,), _TEXT),
    "/v1/messages/render": ((anthropic.MessagesRequest,), _MESSAGE),
    "/v1/responses/render": ((responses.ResponsesRequest,), _INPUT),
    "/v1/chat/completions/derender": ((generate.DerenderChatRequest,), {"generate_response": _SAID}),
    "/v1/completions/derender": ((generate.DerenderCompletionRequest,), {"generate_responses": [_SAID]}),
    "/inference/v1/generate": ((generate.GenerateRequest,), _GENERATE),
    "/abort_requests": ((generate.AbortRequest,), {"request_ids": ["cmpl-1"]}),
    "/inference/v1/abort_requests": ((generate.AbortRequest,), {"request_ids": ["cmpl-1"]}),
    "/v1/embeddings": ((pooling.EmbeddingRequest,), _INPUT),
    "/pooling": ((pooling.PoolingRequest,), _INPUT),
    "/v2/embed": ((pooling.CohereEmbedRequest,), {"texts": ["hello"]}),
    "/classify": ((pooling.ClassificationRequest,), _INPUT),
    **dict.fromkeys(("/score", "/v1/score"), ((pooling.ScoreRequest,), _PAIR)),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), ((pooling.RerankRequest,), _RANKED)),
    "/generative_scoring": ((label_reads.GenerativeScoringRequest,), _READ),
    "/v1/systemone": ((label_reads.DecisionRequest,), {"state": "a cat", "questions": {"alive": _ALIVE}}),
    "/invocations": ((ANYTHING,), _CHAT),
    "/scale_elastic_ep": ((ANYTHING,), {"new_data_parallel_size": 1}),
    "/v1/load_lora_adapter": ((models.LoadAdapterRequest,), {"lora_name": "sql", "lora_path": "/sql"}),
    "/v1/unload_lora_adapter": ((models.UnloadAdapterRequest,), {"lora_name": "sql"}),
    "/adapters": ((models.RegisterAdapterRequest,), {"name": "sql", "src": "/sql"}),
    "/tokenize": ((tokenize.TokenizePromptRequest, tokenize.TokenizeChatRequest), {"prompt": "hello"}),
    "/detokenize": ((tokenize.DetokenizeRequest,), {"tokens": [120, 121]}),
    "/score_completions": ((tokenize.ScoreTextRequest,), {"prompt": "hello"}),
    "/score_chat_completions": ((tokenize.ScoreChatRequest,), {"messages": HELLO}),
    "/score_tokens": ((tokenize.ScoreTokensRequest,), {"tokens": [1, 2, 3]}),
    "/fake_metrics": ((ANYTHING,), {"running-requests": 3}),
    "/admin/config": ((ANYTHING,), {"log-http": False}),
    "/init_weight_transfer_engine": ((lifecycle.InitTransferRequest,), {"init_info": {}}),
    "/update_weights": ((lifecycle.UpdateWeightsRequest,), {"update_info": {}}),
    "/finish_weight_update": ((lifecycle.FinishUpdateRequest,), {"weight_version": "2"}),
    "/update_weight_version": ((lifecycle.WeightVersionRequest,), {"new_version": "2"}),
    "/weight_checker": ((lifecycle.WeightCheckRequest,), {"action": "checksum"}),
    "/collective_rpc": ((ANYTHING,), {"method": "sleep"}),
    "/start_profile": ((lifecycle.StartProfileRequest,), {}),
}
"""Types of the body and a body that succeeds, of POST by path; an empty `model` stands for the served one."""
OPTIONAL = (*("/abort_requests", "/inference/v1/abort_requests", "/finish_weight_update", "/start_profile"),)
"""Paths whose body may be missing."""
ANSWERS: Mapping[str, Any] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/chat/completions/batch": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/responses": responses.ResponseObject,
    "/v1/responses/{response_id}": responses.ResponseObject,
    "/v1/responses/{response_id}/cancel": responses.ResponseObject,
    "/inference/v1/generate": generate.GenerateResponse,
    **dict.fromkeys(("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score"), ItemList),
    "/generative_scoring": ItemList,
    "/v1/systemone": label_reads.Decisions,
    "/tokenize": prompt.TokensAnswer,
    "/score_completions": dict[str, float] | None,
}
"""Type of the JSON of a success, by path."""
ERRORS: Mapping[str, tuple[type[Struct], ...]] = dict.fromkeys(
    ("/v1/messages", "/v1/messages/count_tokens"), (anthropic.ErrorResponse,)
)
"""Types of errors besides the usual ones, by path."""
_STREAM, _BINARY = ("application/json", "text/event-stream"), ("application/json", "application/octet-stream")
MEDIA: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/completions", "/v1/messages"), _STREAM),
    **dict.fromkeys(("/v1/responses", "/v1/responses/{response_id}", "/inference/v1/generate"), _STREAM),
    **dict.fromkeys(("/v1/embeddings", "/pooling"), _BINARY),
    "/invocations": (*_STREAM, *_BINARY),
    **dict.fromkeys(("/health", "/health/ready", "/ready", "/ping", "/start_profile", "/stop_profile"), ()),
    **dict.fromkeys(("/reset_mm_cache", "/reset_encoder_cache", "/fake_metrics"), ()),
}
"""Media types of a success, by path."""
ANY_MEDIA = ("application/json", "text/plain", "text/html")


_RANKS = defstruct("Ranks", [("check", bool, False), ("ranks", Literal["all"] | None, None)])
QUERIES: Mapping[str, type[Struct]] = {
    "GET /v1/responses/{response_id}": Retrieval,
    "GET /admin/config": _RANKS,
    "POST /admin/config": _RANKS,
    "POST /admin/drain": _RANKS,
    "GET /admin/verdict": defstruct("Verdict", [("over", bool, False)]),
    "POST /sleep": lifecycle.SleepQuery,
    "POST /wake_up": defstruct("Wake", [("tags", list[str])]),
    "POST /pause": lifecycle.PauseQuery,
    "POST /reset_prefix_cache": lifecycle.ResetQuery,
    "GET /server_info": lifecycle.InfoQuery,
    "GET /get_world_size": lifecycle.WorldSizeQuery,
}
"""Parameters of queries, by method and path."""
