"""Each model of vLLM's tests is served with the routes that vLLM's registry gives its kind.

Models of one kind have the same routes, so that one server of each kind is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.vllm_facts.test_model_choice import client
from vllm_facts.model_choice import Choice, choose_model, model_fallbacks
from vllm_facts.models import read_rows

TESTS = "tests of vLLM"
EMBEDDINGS = frozenset(("/v1/embeddings",))
COHERE = frozenset(("/v2/embed",))
COMPARISONS = frozenset(("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"))
POOLING = frozenset(("/pooling",))
CLASSES = frozenset(("/classify",))
TEXTS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses"))
SPEECH = frozenset(("/v1/audio/transcriptions",))
ROUTES = {
    "generate": TEXTS,
    "transcription": SPEECH,
    "embed": EMBEDDINGS | COHERE | POOLING | COMPARISONS,
    "score": POOLING | CLASSES | COMPARISONS,
    "classify": POOLING | CLASSES,
    "token_embed": EMBEDDINGS | POOLING | COMPARISONS,
    "token_classify": POOLING,
    "plugin": POOLING,
}
"""Use of a model -> its routes among those of all uses."""
ALL_ROUTES = frozenset().union(*ROUTES.values())


def use_of(choice: Choice) -> str:
    """Returns the use of a model by its kind in the registry."""
    kind = choice.kind
    if kind.transcribes_only:
        return "transcription"
    if not choice.task:
        return "generate"
    if choice.task == "classify" and choice.has_one_class:
        return "score"
    if "classify" in kind.tasks:
        return "classify"  # also of tokens: the route is there, and refuses
    return choice.task.partition("&")[0]


def kinds_of_models() -> Iterator[tuple[str, str]]:
    """Yields the first model of each kind, with its use."""
    seen: set[tuple[str, str]] = set()
    for name, row in read_rows().items():
        if row.source != TESTS:
            continue
        choice = choose_model(name, skips_check=True, version="0.33")
        use = use_of(choice)
        kind = (use, str(sorted(model_fallbacks(choice))))
        if kind not in seen:
            seen.add(kind)
            yield name, use


KINDS = list(kinds_of_models())


def test_all_uses_are_among_the_models() -> None:
    assert {use for _, use in KINDS} == set(ROUTES)


@pytest.mark.parametrize(("name", "use"), KINDS)
def test_model_has_the_routes_of_its_kind(name: str, use: str) -> None:
    app_client = client(name, "--vllm-version", "0.33")
    present = {path for path in ALL_ROUTES if app_client.post(path, json={}).status_code != 404}
    assert present - SPEECH == ROUTES[use] - SPEECH
    if use == "transcription":
        assert present >= SPEECH
