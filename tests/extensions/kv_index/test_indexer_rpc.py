"""`GetPodScores`: llm-d's messages, a filter by pods, ranks and errors."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.server.http.errors import ApiError
from app.core.settings import load
from app.core.text.huggingface import default_tokenizer
from app.extensions.kv_index.indexer_rpc import indexer_handlers
from app.extensions.kv_index.service import KvIndex
from tests.extensions.kv_index.engines import ingest, stored
from tests.extensions.kv_index.test_service import make

pytestmark = pytest.mark.grpc
TEXT = "The lighthouse keeper writes down every ship that passes, and where it is bound for."
TOKENS = default_tokenizer().encode(TEXT)
CONTEXT: Any = SimpleNamespace()


@pytest.fixture
def index() -> Iterator[KvIndex]:
    kv_index = make()
    yield kv_index
    kv_index.close()


def ask(index: KvIndex, **fields: Any) -> Any:
    from app.extensions.kv_index.indexer_proto import GET_POD_SCORES, GetPodScoresRequest

    [(name, handler)] = indexer_handlers(index, load(("--model", "m"))).items()
    assert name == GET_POD_SCORES == "indexer.v1.IndexerService/GetPodScores"
    return handler(GetPodScoresRequest(**fields), CONTEXT)


def store(index: KvIndex, pod: str, blocks: int, rank: int = 0) -> None:
    ingest(index.index, pod, stored(range(1, blocks + 1), TOKENS[: 4 * blocks]), rank=rank)


def test_indexer_messages_have_the_same_wire_format_as_in_llm_d() -> None:
    from app.extensions.kv_index.indexer_proto import GetPodScoresRequest, GetPodScoresResponse

    request = GetPodScoresRequest(prompt="p", model_name="m", pod_identifiers=["a", "b"])
    assert request.SerializeToString() == b"\x0a\x01p\x12\x01m\x1a\x01a\x1a\x01b"
    response = GetPodScoresResponse()
    response.scores.add(pod="a", score=1.0)
    without_rank = b"\x0a\x01a\x11\0\0\0\0\0\0\xf0\x3f"
    assert response.SerializeToString() == b"\x0a\x0c" + without_rank
    response.scores[0].data_parallel_rank = 0
    assert response.SerializeToString() == b"\x0a\x0e" + without_rank + b"\x18\0"


def test_pod_scores_are_sorted_best_first_and_contain_no_rank(index: KvIndex) -> None:
    store(index, "a", 1)
    store(index, "b", 3)
    answer = ask(index, prompt=TEXT, model_name="m")
    assert [(score.pod, score.score) for score in answer.scores] == [("b", 3.0), ("a", 1.0)]
    assert not any(score.HasField("data_parallel_rank") for score in answer.scores)


def test_pod_identifiers_in_a_request_limit_the_scored_pods(index: KvIndex) -> None:
    store(index, "a", 1)
    store(index, "b", 3)
    answer = ask(index, prompt=TEXT, model_name="m", pod_identifiers=["a", "c"])
    assert [score.pod for score in answer.scores] == ["a"]
    assert not ask(index, prompt=TEXT, model_name="m", pod_identifiers=["c"]).scores


def test_each_rank_of_a_pod_has_a_separate_score(index: KvIndex) -> None:
    store(index, "a", 1, rank=0)
    store(index, "a", 2, rank=1)
    answer = ask(index, prompt=TEXT, model_name="m")
    assert [(score.score, score.data_parallel_rank) for score in answer.scores] == [(2, 1), (1, 0)]
    assert all(score.HasField("data_parallel_rank") for score in answer.scores)


def test_number_of_backend_calls_does_not_depend_on_the_number_of_pods(
    index: KvIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(index, "a", 1)
    calls: list[int] = []
    lookup = index.index.backend.lookup

    def counted(keys: Any) -> Any:
        calls.append(len(keys))
        return lookup(keys)

    monkeypatch.setattr(index.index.backend, "lookup", counted)
    ask(index, prompt=TEXT, model_name="m")
    for_one_pod = len(calls)
    for number in range(20):
        store(index, f"pod {number}", 1)
    calls.clear()
    assert len(ask(index, prompt=TEXT, model_name="m").scores) == 21
    assert len(calls) == for_one_pod


def test_prompt_shorter_than_a_block_has_no_scores(index: KvIndex) -> None:
    store(index, "a", 1)
    assert not ask(index, prompt="", model_name="m").scores
    assert not ask(index, prompt="a", model_name="m").scores


def test_unknown_model_returns_not_found(index: KvIndex) -> None:
    with pytest.raises(ApiError) as caught:
        ask(index, prompt=TEXT, model_name="unknown")
    assert caught.value.status in (404, 503)
