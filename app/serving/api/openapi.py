"""GET /openapi.json, /docs, /redoc, GET / and POST /invocations: what the routes take, by tables of structs.

Routes that are in no table take no body, and answer any JSON or text.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct, defstruct

from app.base.clock.pause import call_off_hub
from app.serving.api import label_reads, models
from app.serving.api.admin import lifecycle, testing
from app.serving.api.chat import prompt
from app.serving.api.responses.routes import Retrieval
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Handler, Route, get, post
from app.serving.protocol import anthropic, derender, generate, pooling, responses, tokenize
from app.serving.protocol.chat import BatchChatRequest, ChatCompletion, ChatCompletionRequest
from app.serving.protocol.common import ItemList
from app.serving.protocol.completions import Completion, CompletionRequest
from app.serving.protocol.decoding import Request, check_content_type, first_fit, read_json
from config import VERSION

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
    "/v1/chat/completions/derender": (
        (derender.DerenderChatRequest, derender.DerenderChatStreamRequest),
        {"generate_response": _SAID},
    ),
    "/v1/completions/derender": (
        (derender.DerenderCompletionRequest, derender.DerenderCompletionStreamRequest),
        {"generate_responses": [_SAID]},
    ),
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
    testing.RULES: ((ANYTHING,), {"rules": [{"when": {"message": "hi"}, "then": {"text": "Hello."}}]}),
    "/init_weight_transfer_engine": ((lifecycle.InitTransferRequest,), {"init_info": {}}),
    "/update_weights": ((lifecycle.UpdateWeightsRequest,), {"update_info": {}}),
    "/finish_weight_update": ((lifecycle.FinishUpdateRequest,), {"weight_version": "2"}),
    "/update_weight_version": ((lifecycle.WeightVersionRequest,), {"new_version": "2"}),
    "/weight_checker": ((lifecycle.WeightCheckRequest,), {"action": "checksum"}),
    "/collective_rpc": ((ANYTHING,), {"method": "sleep"}),
    "/start_profile": ((lifecycle.StartProfileRequest,), {}),
}
"""Types of the body and a body that succeeds, by path; an empty `model` is the served one."""
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
    **dict.fromkeys(("GET /admin/journal", "DELETE /admin/journal"), testing.JournalQuery),
    **{f"{method} {testing.RULES}": testing.RulesQuery for method in ("GET", "PUT", "POST", "DELETE")},
    "POST /sleep": lifecycle.SleepQuery,
    "POST /wake_up": defstruct("Wake", [("tags", list[str])]),
    "POST /pause": lifecycle.PauseQuery,
    "POST /reset_prefix_cache": lifecycle.ResetQuery,
    "GET /server_info": lifecycle.InfoQuery,
    "GET /get_world_size": lifecycle.WorldSizeQuery,
}
"""Parameters of queries, by method and path."""


Schema = dict[str, Any]

DOCUMENT = "/openapi.json"
JSON = "application/json"
REFERENCE = "#/components/schemas/{name}"
HTML = "text/html; charset=utf-8"
CDN = "https://cdn.jsdelivr.net/npm"
PAGE = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Understudy</title></head><body>'
    '<a href="{document}">{document}</a>{viewer}</body></html>'
)
"""Page with the viewer of vLLM's framework; without network only a link to the document."""
VIEWERS = {
    "/docs": f'<link rel="stylesheet" href="{CDN}/swagger-ui-dist@5/swagger-ui.css"><div id="docs"></div>'
    f'<script src="{CDN}/swagger-ui-dist@5/swagger-ui-bundle.js"></script>'
    '<script>SwaggerUIBundle({url: "DOCUMENT", dom_id: "#docs"})</script>',
    "/docs/oauth2-redirect": "",
    "/redoc": '<redoc spec-url="DOCUMENT"></redoc>'
    f'<script src="{CDN}/redoc@2/bundles/redoc.standalone.js"></script>',
}
WHERE = {"openapi": DOCUMENT, "health": "/health", "metrics": "/metrics"}


def root_routes(served: Callable[[], Iterable[Route]], about: Mapping[str, object]) -> list[Route]:
    def root(context: RequestContext) -> Response:
        """A description of this server, with the paths of its documents."""
        paths = sorted({(route.path, method) for route in served() for method in route.methods})
        routes = [f"{method} {path}" for path, method in paths if method != "HEAD"]
        where = {name: path for name, path in WHERE.items() if f"GET {path}" in routes}
        return json_response({"name": "understudy", "version": VERSION, **about, **where, "routes": routes})

    return [get("/", root)]


def document_routes(served: Callable[[], Iterable[Route]], root_path: str, model: str) -> list[Route]:
    """Returns GET /openapi.json, which describes the routes `served` at its first use, and pages for it."""
    made: list[bytes] = []

    def openapi(context: RequestContext) -> Response:
        """This document."""
        if not made:
            # Importing and building would hold the event loop for too long.
            made.append(call_off_hub(document, tuple(served()), root_path, model))
        return json_response(made[0])

    def page(context: RequestContext) -> Response:
        """The document, for people to read."""
        assert context.route is not None
        viewer = VIEWERS[context.route.path].replace("DOCUMENT", root_path + DOCUMENT)
        text = PAGE.format(document=root_path + DOCUMENT, viewer=viewer)
        return Response(text.encode(), content_type=HTML)

    handlers = {DOCUMENT: openapi, **dict.fromkeys(VIEWERS, page)}
    return [Route(methods=("GET", "HEAD"), path=path, handle=handle) for path, handle in handlers.items()]


ABOUT = (
    "Plays a vLLM server: its API, its metrics and its timing, without a model. Bodies are taken as "
    "leniently as vLLM takes them; rules that no schema can say are told by a 400."
)
_VARIABLE = re.compile(r"\{(\w+)\}")


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


def document(routes: Iterable[Route], root_path: str, model: str) -> bytes:
    """Returns the document as JSON. Examples name `model` where they need a model."""
    rows = [(method, route) for route in routes for method in route.methods if method != "HEAD"]
    kinds: set[Any] = {Error, RoutingError}
    for _, route in rows:
        kinds |= {*BODIES.get(route.path, ((),))[0], *ERRORS.get(route.path, ())}
        kinds |= {ANSWERS[route.path]} if route.path in ANSWERS else set()
    listed = sorted(kinds, key=repr)
    schemas, components = msgspec.json.schema_components(
        listed, schema_hook=lambda kind: {"description": "Any JSON."}, ref_template=REFERENCE
    )
    described = dict(zip(listed, schemas, strict=True))
    paths = dict[str, Schema]()
    for method, route in rows:
        paths.setdefault(route.path, {})[method.lower()] = _operation(method, route, described, model)
    info = {"title": "Understudy", "version": VERSION, "description": ABOUT}
    servers = {"servers": [{"url": root_path}]} if root_path else {}
    parts = {"info": info, **servers, "paths": paths, "components": {"schemas": components}}
    return msgspec.json.encode({"openapi": "3.1.0", **parts})


def _operation(method: str, route: Route, described: Mapping[Any, Schema], model: str) -> Schema:
    path = route.path
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _VARIABLE.findall(path)
    ]
    if query := QUERIES.get(f"{method} {path}"):
        [its] = msgspec.json.schema(query)["$defs"].values()
        parameters += [{"name": name, "in": "query", "schema": it} for name, it in its["properties"].items()]
    media = MEDIA.get(path, (JSON,) if path in ANSWERS else ANY_MEDIA)
    content: Schema = {kind: {} for kind in media}
    if JSON in content:
        content[JSON] = {"schema": described.get(ANSWERS.get(path), {})}
    errors = [described[kind] for kind in (Error, RoutingError, *ERRORS.get(path, ()))]
    bad = {"description": "Why not.", "content": {JSON: {"schema": {"anyOf": errors}}}}
    good = {"description": "What was asked for.", **({"content": content} if content else {})}
    operation: Schema = {
        "operationId": f"{method.lower()}{re.sub(r'[^a-z0-9]+', '_', path.lower())}".rstrip("_"),
        "summary": (route.handle.__doc__ or "").partition("\n")[0],
        "parameters": parameters,
        "responses": {"204" if path == "/fake_metrics" else "200": good, "4XX": bad, "5XX": bad},
    }
    if method in ("POST", "PUT") and path in BODIES:
        kinds, example = BODIES[path]
        named = {**example, "model": model} if "model" in example else example
        schema = described[kinds[0]] if len(kinds) == 1 else {"anyOf": [described[kind] for kind in kinds]}
        body = {JSON: {"schema": schema, "example": named}}
        operation["requestBody"] = {"required": path not in OPTIONAL, "content": body}
    return operation


FAMILIES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/classify",
    "/rerank",
    "/score",
    "/pooling",
)
"""Paths of the families in vLLM's order of trial; only served paths count."""
ADAPTER = "x-amzn-sagemaker-adapter-identifier"
"""Header that names the model instead of the body."""


def invocation_routes(body: BodyLimits, served: Callable[[], Iterable[Route]]) -> list[Route]:
    """Returns POST /invocations: SageMaker's single route, for all families."""
    handlers: dict[type[Request], Handler] = {}

    def invocations(context: RequestContext) -> Response:
        """Answers as the route of the body's family does."""
        check_content_type(context.content_type)
        values = read_json(body.read(context))
        if not handlers:
            by_path = {route.path: route.handle for route in served()}
            for path in filter(by_path.__contains__, FAMILIES):
                [kind], _ = BODIES[path]
                handlers[kind] = by_path[path]
        kind = None
        if isinstance(values, dict):
            if adapter := context.headers.get(ADAPTER):
                values["model"] = adapter
                context.body = msgspec.json.encode(values)
            kind = first_fit(values, list(handlers))
        if kind is None:
            raise bad_request(f"The body fits none of {', '.join(kind.__name__ for kind in handlers)}.")
        return handlers[kind](context)

    return [post("/invocations", invocations)]
