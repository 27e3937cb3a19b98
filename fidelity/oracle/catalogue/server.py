"""The server: its description, its health, odd HTTP, control routes, and counters."""

from fidelity.oracle.cases import JSON_HEADERS, MODEL, Area
from fidelity.oracle.catalogue.requests import (
    CHAT,
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    COMPLETIONS,
    MESSAGES,
    QUESTION,
    RESPONSES,
)

DESCRIPTION = Area("description")
for path, reason in {
    "/v1/models": "Clients choose a model by this list.",
    f"/v1/models/{MODEL}": "Some SDKs ask for one model.",
    "/v1/models/none": "An unknown model.",
    "/health": "Probes read status and body.",
    "/ping": "SageMaker probes.",
    "/load": "Routers read the load.",
    "/kv_event_sources": "Indexers find the publisher.",
    "/server_info?config_format=yaml": "The formats are a fixed list.",
    "/is_sleeping": "Autoscalers read the state.",
    "/is_paused": "Trainers read the state.",
    "/get_world_size": "Trainers read the number of ranks.",
    "/weight_info": "Trainers read the version of the weights.",
    "/fault_tolerance/status": "Operators read the state of ranks.",
    "/tokenizer_info": "The route requires a flag.",
    "/docs": "Browsers open the description.",
    "/redoc": "Browsers open the description.",
    "/nothing": "An unknown route.",
    "/v1": "An unknown route.",
    "/v1/": "An unknown route.",
    "/v1/models/": "Slashes at the end.",
    "//v1/models": "Slashes at the beginning.",
    "/v1/MODELS": "Paths have a case.",
    "/v1/models?x=1": "Queries are ignored.",
    "/v1/models/a/b": "A path below a model.",
    "/v1/files": "OpenAI has this route.",
    "/v1/assistants": "OpenAI has this route.",
    "/v1/responses": "A GET without an id.",
}.items():
    values = ("status",) if path == "/fault_tolerance/status" else ()
    DESCRIPTION.get(path, reason, values=values)
for path in ("/server_info", "/server_info?config_format=json"):
    DESCRIPTION.get(
        path,
        "Tools read the configuration, whose parts depend on the machine.",
        ignored=("system_env", "vllm_env", "vllm_config"),
    )
DESCRIPTION.get("/version", "Tools check the version.", values=("version",))
DESCRIPTION.get("/metrics", "Dashboards read families, types and labels.")

METHODS = Area("methods")
for path in (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    MESSAGES,
    "/v1/models",
    "/tokenize",
    "/health",
    "/version",
    "/metrics",
    "/ping",
    "/load",
    "/sleep",
    "/invocations",
    "/v1/embeddings",
    "/nothing",
):
    for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        if (method, path) not in (("GET", "/metrics"), ("POST", "/sleep"), ("POST", "/ping")):
            METHODS.case(
                f"{method} {path}",
                "Each route allows certain methods.",
                method=method,
                path=path,
                body=None,
                headers={},
            )

BODIES = Area("bodies", path=CHAT)
for name, body in {
    "nothing": "",
    "null": "null",
    "list": "[]",
    "number": "5",
    "text": '"Hi"',
    "empty object": "{}",
    "cut": '{"model": "oracle", "mess',
    "single quotes": "{'model': 'oracle'}",
    "trailing comma": '{"model": "oracle",}',
    "two values": "{} {}",
    "spaces only": "   ",
    "NaN": '{"model": "oracle", "temperature": NaN}',
    "infinity": '{"model": "oracle", "temperature": Infinity}',
    "huge number": '{"model": "oracle", "seed": 1e400}',
    "repeated key": '{"model": "none", "model": "oracle", "messages": [], "max_tokens": 1}',
    "deep": "[" * 200 + "]" * 200,
    "lone surrogate": '{"model": "\\ud800"}',
    "form": "model=oracle&prompt=Hi",
}.items():
    BODIES.case(
        name, "Faulty clients get an error that they can read.", body=body, headers=JSON_HEADERS
    )
for name, encoded in {
    "byte order mark": b'\xef\xbb\xbf{"model": "oracle"}',
    "invalid UTF-8": b'{"model": "\xff\xfe"}',
    "UTF-16": '{"model": "oracle"}'.encode("utf-16"),
}.items():
    BODIES.case(name, "Encodings of JSON are detected or refused.", body=encoded)
for content_type in (
    "text/plain",
    "application/json; charset=utf-8",
    "application/json; charset=latin-1",
    "APPLICATION/JSON",
    "application/x-www-form-urlencoded",
    "application/vnd.api+json",
    "multipart/form-data; boundary=x",
    "",
    "json",
):
    BODIES.case(
        f"content type {content_type!r}",
        "Only JSON is accepted.",
        body=CHAT_FIELDS,
        headers={"Content-Type": content_type},
    )
BODIES.case("without a content type", "curl -d sends another.", body=CHAT_FIELDS, headers={})
HEADERS = Area("headers", path=CHAT, fields=CHAT_FIELDS)
for name, value in {
    "X-Request-Id": "mine",
    "X-Session-ID": "s1",
    "X-data-parallel-rank": "0",
    "X-Vllm-Priority": "1",
    "Accept": "text/event-stream",
    "Accept-Encoding": "gzip",
    "Origin": "https://a.example",
    "Authorization": "Bearer nothing",
    "endpoint-load-metrics-format": "JSON",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "Expect": "100-continue",
    "OpenAI-Organization": "o",
}.items():
    HEADERS.case(
        f"{name}: {value}",
        "Proxies and SDKs send this header.",
        headers={**JSON_HEADERS, name: value},
    )
HEADERS.case(
    "unknown rank",
    "A rank that does not exist.",
    headers={**JSON_HEADERS, "X-data-parallel-rank": "7"},
)
HEADERS.case(
    "rank that is not a number",
    "A rank that does not exist.",
    headers={**JSON_HEADERS, "X-data-parallel-rank": "x"},
)
HEADERS.case(
    "request id in a completion",
    "The id of the answer has it.",
    path=COMPLETIONS,
    body=COMPLETION_FIELDS,
    headers={**JSON_HEADERS, "X-Request-Id": "mine"},
    values=("id",),
)

LESSER = Area("lesser routes")
INVOCATION_BODIES: dict[str, object] = {
    "chat": CHAT_FIELDS,
    "completion": COMPLETION_FIELDS,
    "embedding": {"model": MODEL, "input": "Hi"},
    "nothing": {},
    "text": "Hi",
}
for name, fields in INVOCATION_BODIES.items():
    LESSER.case(
        f"invocation of {name}", "SageMaker has one route.", path="/invocations", body=fields
    )
LESSER_BODIES: dict[str, object] = {
    "/v1/embeddings": {"model": MODEL, "input": "Hi"},
    "/v1/score": {"model": MODEL, "text_1": "a", "text_2": "b"},
    "/score": {"model": MODEL, "text_1": "a", "text_2": "b"},
    "/rerank": {"model": MODEL, "query": "a", "documents": ["b"]},
    "/v1/rerank": {"model": MODEL, "query": "a", "documents": ["b"]},
    "/v2/rerank": {"model": MODEL, "query": "a", "documents": ["b"]},
    "/v2/embed": {"model": MODEL, "texts": ["a"], "input_type": "x"},
    "/classify": {"model": MODEL, "input": "Hi"},
    "/pooling": {"model": MODEL, "input": "Hi"},
    "/v1/audio/transcriptions": {"model": MODEL},
    "/v1/audio/translations": {"model": MODEL},
    "/v1/images/generations": {"prompt": "a cat"},
    "/v1/moderations": {"input": "a"},
    "/cohere/v2/chat": CHAT_FIELDS,
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "/a"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
    "/v1/decisions": {"model": MODEL},
    "/v1/systemone": {"model": MODEL},
    "/generative_scoring": {"model": MODEL},
}
for path, fields in LESSER_BODIES.items():
    LESSER.case(f"POST {path}", "Routes of other models are absent.", path=path, body=fields)

CONTROL = Area("control")
PAUSED_TIMEOUT_S = 3.0
"""Time after which a request is taken to wait for the end of a pause."""


def _control(path: str, reason: str, body: object = None) -> None:
    CONTROL.case(
        f"POST {path} {'' if body is None else repr(body)[:60]}".strip(),
        reason,
        path=path,
        body=body,
        values=("status", "level", "tags", "results", "world_size"),
    )


_control("/reset_prefix_cache", "Benchmarks reset caches.")
_control("/reset_prefix_cache?reset_running_requests=true", "Benchmarks reset caches.")
_control("/reset_mm_cache", "Benchmarks reset caches.")
_control("/reset_encoder_cache", "Benchmarks reset caches.")
_control("/pause", "Trainers pause.")
CONTROL.get("/is_paused", "It is paused.", "is paused")
_control("/resume", "Trainers resume.")
CONTROL.get("/is_paused", "It is not paused.", "is not paused")
_control("/pause?mode=keep", "Modes of a pause.")
_control("/resume?again", "It works twice.")
_control("/pause?mode=abort", "Modes of a pause.")
CONTROL.case(
    "request while paused by abort",
    "It waits, or is refused.",
    path=CHAT,
    body=CHAT_FIELDS,
    timeout_s=PAUSED_TIMEOUT_S,
)
CONTROL.case(
    "message while paused by abort",
    "It waits, or is refused in Anthropic's words.",
    path=MESSAGES,
    body={"model": MODEL, "max_tokens": 3, "messages": QUESTION},
    timeout_s=PAUSED_TIMEOUT_S,
)
CONTROL.case(
    "stream while paused by abort",
    "It waits, or is refused.",
    path=CHAT,
    body={**CHAT_FIELDS, "stream": True},
    timeout_s=PAUSED_TIMEOUT_S,
)
_control("/resume?from=abort", "Trainers resume.")
_control("/pause?mode=what", "The modes are a fixed list.")
_control("/resume?from=what", "Trainers resume.")
_control("/sleep?level=0", "Level 0 only pauses.")
CONTROL.get("/is_sleeping", "It sleeps or not.", "is sleeping")
_control("/wake_up", "Autoscalers wake a server.")
_control("/sleep?level=9", "The levels are a fixed list.")
_control("/wake_up?tags=what", "The tags are a fixed list.")
_control("/wake_up?again", "It works twice.")
_control("/start_profile", "A profiler is not configured.")
_control("/stop_profile", "A profiler is not configured.")
_control("/scale_elastic_ep", "The body is checked.", {})
_control("/scale_elastic_ep", "The body is checked.", {"new_data_parallel_size": 0})
_control("/is_scaling_elastic_ep", "Operators wait for the end.")
_control("/collective_rpc", "The body is checked.", {})
_control("/collective_rpc", "An unknown method.", {"method": "no_such_method"})
_control("/update_weights", "The body is checked.", {})
_control("/init_weight_transfer_engine", "The body is checked.", {})
_control("/start_weight_update", "There is no engine.", {})
_control("/finish_weight_update", "There is no engine.", {})
_control("/update_weight_version", "The body is checked.", {})
_control("/weight_checker", "The body is checked.", {})
_control("/release_kv_cache_memory", "Trainers free memory.")
_control("/fault_tolerance/apply", "The body is checked.", {})
CONTROL.case("request after all", "It is served.", path=CHAT, body=CHAT_FIELDS)

CACHE = Area(
    "cache", path=COMPLETIONS, fields={"model": MODEL, "max_tokens": 1, "ignore_eos": True}
)
BLOCK = 32
"""Tokens of a block, as in COMMON_FLAGS."""
for run in ("first", "second"):
    for name, prompt in {
        "three blocks": list(range(1000, 1000 + 3 * BLOCK)),
        "three blocks and a token": list(range(2000, 2001 + 3 * BLOCK)),
        "less than a block": list(range(3000, 3000 + BLOCK - 1)),
        "other end": [*range(1000, 1000 + 2 * BLOCK), *range(4000, 4000 + BLOCK)],
    }.items():
        CACHE.case(
            f"{name}, {run}",
            "Usage has the cached tokens, and counters grow by them.",
            {"prompt": prompt},
            counters=(
                "vllm:prefix_cache_queries_total",
                "vllm:prefix_cache_hits_total",
                "vllm:prompt_tokens_total",
                "vllm:prompt_tokens_cached_total",
            ),
        )
COUNTERS = Area("counters", path=COMPLETIONS, fields={**COMPLETION_FIELDS, "ignore_eos": True})
COUNTER_NAMES = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:request_prompt_tokens_count",
    "vllm:request_prompt_tokens_sum",
    "vllm:request_generation_tokens_sum",
    "vllm:request_params_max_tokens_sum",
    "vllm:request_params_n_sum",
    "vllm:request_max_num_generation_tokens_sum",
    "vllm:time_to_first_token_seconds_count",
    "vllm:inter_token_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:request_queue_time_seconds_count",
    "vllm:request_prefill_time_seconds_count",
    "vllm:request_decode_time_seconds_count",
    "vllm:request_time_per_output_token_seconds_count",
)
COUNTERS.variants(
    "Dashboards and autoscalers read these counters.",
    {
        "one choice": {},
        "one token": {"max_tokens": 1},
        "two choices": {"n": 2},
        "two prompts": {"prompt": ["Hi", "Ho"]},
        "stream": {"stream": True},
        "error": {"temperature": -1},
        "unknown model": {"model": "none"},
        "too long": {"max_tokens": 5000},
        "beams": {"use_beam_search": True, "n": 2},
        "echo without tokens": {"echo": True, "max_tokens": 0},
    },
    counters=COUNTER_NAMES,
)
COUNTERS.case(
    "chat",
    "Chats count as completions.",
    path=CHAT,
    body={**CHAT_FIELDS, "ignore_eos": True},
    counters=COUNTER_NAMES,
)
COUNTERS.case(
    "tokenize",
    "The engine has no part in it.",
    path="/tokenize",
    body={"model": MODEL, "prompt": "Hi"},
    counters=COUNTER_NAMES,
)
HTTP_COUNTERS = ("http_requests_total",)
for path in ("/v1/models", "/health", "/version", "/nothing"):
    COUNTERS.get(path, "The instrumentation counts routes.", counters=HTTP_COUNTERS)
AREAS = (DESCRIPTION, METHODS, BODIES, HEADERS, LESSER, CACHE, COUNTERS, CONTROL)
