"""Which pod gets a request, and what the indexer is asked for that."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from app.lab.fleet.routing import CHAT, COMPLETIONS, Incoming, Indexer, policies_of
from app.lab.load.policies import BLIND, POLICIES, IndexerError, PrefixAware, RandomChoice, RoundRobin
from tests.fleet import stubs

ANY = Incoming("/v1/completions", b"{}")
PODS = ("a", "b", "c")
IDLE = dict.fromkeys(PODS, 0)


def prefix_aware(scores: Mapping[str, float], seed: int = 1) -> PrefixAware[Incoming, str]:
    return PrefixAware(lambda incoming: scores, Random(seed), blocks_per_request=10)


def failing(incoming: Incoming) -> Mapping[str, float]:
    raise IndexerError("away")


def test_round_robin_takes_turns() -> None:
    policy = RoundRobin()
    assert [policy.choose(ANY, PODS, IDLE) for _ in range(7)] == ["a", "b", "c", "a", "b", "c", "a"]


def test_random_chooses_each_pod_and_the_same_ones_with_the_same_seed() -> None:
    one, same = RandomChoice(Random(5)), RandomChoice(Random(5))
    chosen = [one.choose(ANY, PODS, IDLE) for _ in range(3000)]
    assert chosen == [same.choose(ANY, PODS, IDLE) for _ in range(3000)]
    counts = Counter(chosen)
    assert set(counts) == set(PODS) and min(counts.values()) > 800


@pytest.mark.parametrize(
    ("scores", "in_flight", "chosen"),
    [
        ({"a": 3.0, "c": 4.0}, (0, 0, 0), "c"),  # the longest prefix
        ({"b": 45.0}, (0, 4, 1), "b"),
        ({"b": 45.0}, (0, 5, 1), "a"),  # too busy for its prefix
        ({}, (2, 1, 2), "b"),  # the least loaded
        ({"elsewhere": 99.0, "b": 1.0}, (0, 0, 0), "b"),  # no pod of ours
    ],
)
def test_a_prefix_counts_less_the_requests_in_flight(
    scores: dict[str, float], in_flight: tuple[int, int, int], chosen: str
) -> None:
    assert prefix_aware(scores).choose(ANY, PODS, dict(zip(PODS, in_flight, strict=True))) == chosen


def test_equals_share_what_is_new() -> None:
    policy = prefix_aware({})
    assert {policy.choose(ANY, PODS, IDLE) for _ in range(300)} == set(PODS)


@pytest.mark.parametrize("name", POLICIES)
def test_every_name_has_a_policy_that_takes_only_pods_that_are_offered(name: str) -> None:
    policy = policies_of([name], {})[name](lambda incoming: {"a": 9.0}, Random(1))
    assert {policy.choose(ANY, ["b", "c"], IDLE) for _ in range(50)} <= {"b", "c"}
    busy = {"b": 3, "c": 1}
    assert name in BLIND or {policy.choose(ANY, ["b", "c"], busy) for _ in range(9)} == {"c"}


def test_an_indexer_that_fails_is_counted_and_load_decides() -> None:
    policy = PrefixAware(failing, Random(1))
    assert policy.choose(ANY, PODS, {"a": 1, "b": 1, "c": 0}) == "c"
    assert policy.choose(ANY, PODS, {"a": 0, "b": 1, "c": 1}) == "a"
    assert policy.fallbacks == 2


def test_load_is_looked_at_after_the_scores_have_come() -> None:
    in_flight = dict(IDLE)

    def slow(incoming: Incoming) -> Mapping[str, float]:
        in_flight["a"] = in_flight["b"] = 1  # what other requests did in the meantime
        return {}

    assert PrefixAware(slow, Random(1)).choose(ANY, PODS, in_flight) == "c"


MESSAGES = [{"role": "user", "content": "Hello!"}]


def asked(path: str, body: object, answer: object) -> tuple[Any, list[tuple[str, dict[str, Any]]]]:
    """The scores of a request, and what was asked for them."""
    stub = stubs.Indexer(answer)
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    with stubs.serving(stub) as address:
        return Indexer(address).scores(Incoming(path, text)), stub.asked


TOOLS = [{"type": "function", "function": {"name": "f"}}]
QUESTIONS: list[tuple[str, dict[str, Any], tuple[str, dict[str, Any]]]] = [
    (
        COMPLETIONS,
        {"model": "m", "prompt": "Once", "max_tokens": 3, "cache_salt": "s"},
        ("/score_completions", {"model": "m", "prompt": "Once", "cache_salt": "s"}),
    ),
    (COMPLETIONS, {"prompt": ["Once", "Twice"]}, ("/score_completions", {"prompt": "Once"})),
    (COMPLETIONS, {"prompt": ["Once"]}, ("/score_completions", {"prompt": "Once"})),
    (COMPLETIONS, {"prompt": [[1], [2]]}, ("/score_tokens", {"tokens": [1]})),
    (
        CHAT,
        {"model": "m", "messages": MESSAGES, "tools": TOOLS, "temperature": 1, "stream": True},
        (
            "/score_chat_completions",
            {"model": "m", "messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": True},
        ),
    ),
]


@pytest.mark.parametrize(("path", "body", "question"), QUESTIONS)
def test_what_decides_about_the_blocks_is_asked_for(
    path: str, body: dict[str, Any], question: tuple[str, dict[str, Any]]
) -> None:
    """A text as text, a conversation with what its template needs, and of a batch the first prompt."""
    answer = {} if question[0] == "/score_tokens" else {"pod": 3.0}
    assert asked(path, body, answer) == (answer, [question])


def test_tokens_are_asked_for_as_tokens() -> None:
    answer = {"blocks": 2, "scores": {"pod": {"score": 1.8, "matched": 2}}}
    scores, questions = asked(COMPLETIONS, {"model": "m", "prompt": [1, 2, 3]}, answer)
    assert scores == {"pod": 1.8}
    assert questions == [("/score_tokens", {"model": "m", "tokens": [1, 2, 3]})]


def test_null_means_no_scores() -> None:
    assert asked(COMPLETIONS, {"prompt": "short"}, None)[0] == {}


@pytest.mark.parametrize("body", [b"not JSON", b"[]", b"\xff", b'{"prompt": ""}', b'{"prompt": 5}', b"{}"])
def test_a_request_that_a_pod_will_refuse_is_not_asked_for(body: bytes) -> None:
    assert asked(COMPLETIONS, body, 500) == ({}, [])


@pytest.mark.parametrize("answer", [500, 404, b"no JSON", b"[1]", b'{"pod": "much"}', b""])
def test_a_wrong_answer_is_a_failure(answer: object) -> None:
    with pytest.raises(IndexerError):
        asked(COMPLETIONS, {"prompt": "Once"}, answer)


def test_an_indexer_that_is_away_or_silent_is_a_failure() -> None:
    with pytest.raises(IndexerError, match="not answered"):
        Indexer(stubs.unused_address()).scores(Incoming(COMPLETIONS, b'{"prompt": "Once"}'))
    talker = stubs.Talker(b"")
    with stubs.talking(talker) as address, pytest.raises(IndexerError):
        Indexer(address, timeout_s=0.05).scores(Incoming(COMPLETIONS, b'{"prompt": "Once"}'))
    assert talker.client_left.wait(stubs.PATIENCE_S)
