"""Which routes a pooling model serves (simulator.md 2.8, vllm-api.md section 8)."""

from __future__ import annotations

from collections.abc import Mapping

from app.api.frontend import Frontend
from app.api.pooling.classification import classification
from app.api.pooling.embeddings import embeddings, pooling
from app.api.pooling.scores import rerank, score
from app.http.route import Handler, Route, post
from app.pooling.model import PoolingModel
from config.settings import ModelSettings

EMBEDDINGS = "/v1/embeddings"
SCORES = ("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")

ROUTES: Mapping[str, tuple[str, ...]] = {
    "embed": (EMBEDDINGS, "/pooling", *SCORES),
    "score": ("/pooling", "/classify", *SCORES),
    "classify": ("/pooling", "/classify"),
    "pooling": (EMBEDDINGS, "/pooling", "/classify", *SCORES),
}
"""By task, as vLLM has them: `score` is a classifier with one class, a cross-encoder; `classify` is one with
several. A model that does everything, `pooling`, is our own: one server to try them all."""

POOLED: Mapping[str, str] = {
    "embed": "embed",
    "score": "classify",
    "classify": "classify",
    "pooling": "embed",
}
"""What POST /pooling gives when the request does not say, by task."""


def served_routes(settings: ModelSettings) -> tuple[str, ...]:
    """The pooling routes of a model; none for one that generates."""
    routes = ROUTES.get(settings.task, ())
    return tuple(path for path in routes if not (settings.mm_encoder_only and path == EMBEDDINGS))


def routes(frontend: Frontend, settings: ModelSettings) -> list[Route]:
    """The pooling routes. What they do is not queued, takes no time and is not counted (simulator.md 2.8)."""
    task = settings.task
    model = PoolingModel(settings.default_embedding_dimensions, classes=1 if task == "score" else 2)
    scores, ranks = score(frontend, task == "score"), rerank(frontend, task == "score")
    handlers: Mapping[str, Handler] = {
        EMBEDDINGS: embeddings(frontend, model),
        "/pooling": pooling(frontend, model, POOLED.get(task, ""), others=task == "pooling"),
        "/classify": classification(frontend, model),
        **{path: ranks if path.endswith("rerank") else scores for path in SCORES},
    }
    return [post(path, handlers[path]) for path in served_routes(settings)]
