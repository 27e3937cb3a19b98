"""Paths of the routes that a model serves, by its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from config.settings import ModelSettings

EMBEDDINGS = "/v1/embeddings"
COHERE = "/v2/embed"
SCORES = ("/score", "/v1/score")
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank")

TASK_PATHS: Mapping[str, tuple[str, ...]] = {
    "embed": (EMBEDDINGS, COHERE, "/pooling", *SCORES, *RERANKS),
    "score": ("/pooling", "/classify", *SCORES, *RERANKS),
    "classify": ("/pooling", "/classify"),
    "token_embed": (EMBEDDINGS, "/pooling", *SCORES, *RERANKS),
    "token_classify": ("/pooling",),
    "plugin": ("/pooling",),
    "pooling": (EMBEDDINGS, COHERE, "/pooling", "/classify", *SCORES, *RERANKS),
}
"""Routes by task, as in vLLM.

`score` is a classifier with one class, a cross-encoder; `classify` is one with several. A model of
`token_embed` or `token_classify` has no vector or class of a whole text. `pooling` is not a task of
vLLM: it is for one server with all tasks.
"""


def every_path() -> set[str]:
    """Returns the paths of all tasks."""
    paths: set[str] = set()
    for task_paths in TASK_PATHS.values():
        paths.update(task_paths)
    return paths


def served_paths(settings: ModelSettings) -> tuple[str, ...]:
    """Returns the paths of a model; a generating model has embeddings at most."""
    generating_paths = (EMBEDDINGS,) if settings.embeddings_with_chat else ()
    paths = TASK_PATHS.get(settings.task, generating_paths)
    if settings.mm_encoder_only:
        return tuple(path for path in paths if path not in (EMBEDDINGS, COHERE))
    return paths
