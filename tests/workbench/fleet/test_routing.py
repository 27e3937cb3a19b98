"""Which pod gets a request; which prefixes requests share, and what is measured of them."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import gevent
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.plugins.policies import Incoming
from app.shared.http_client import COMPLETIONS, Target
from config.declaration import missing
from tests import stubs
from tests.callbacks import ignore
from workbench.fleet.indexer import CHAT, Indexer
from workbench.fleet.policy_summary import (
    PolicySummary,
    draw_policies,
    failure_notes,
    policy_table,
    summarize,
)
from workbench.fleet.workload import MAX_TURNS, SEPARATOR, Workload, make_workload
from workbench.load.policies import IndexerError, PrefixAware
from workbench.runs.recording_client import (
    PlannedRequest,
    RecordedRequest,
    RecordingClient,
    completion,
)

ANY = Incoming("/v1/completions", b"{}")
PODS = ("a", "b", "c")
IDLE = dict.fromkeys(PODS, 0)
MESSAGES = [{"role": "user", "content": "Hello!"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
QUESTIONS: list[tuple[str, dict[str, Any], tuple[str, dict[str, Any]]]] = [
    (
        COMPLETIONS,
        {"model": "m", "prompt": "Once", "max_tokens": 3, "cache_salt": "s"},
        ("/score_completions", {"model": "m", "prompt": "Once", "cache_salt": "s"}),
    ),
    (COMPLETIONS, {"prompt": ["Once", "Twice"]}, ("/score_completions", {"prompt": "Once"})),
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
USAGE = {"prompt_tokens": 32, "prompt_tokens_details": {"cached_tokens": 16}}
WHOLE = [{"choices": [{"text": ""}]}, {"choices": [{"text": "a"}]}, {"choices": [], "usage": USAGE}]
ANSWERED = [
    RecordedRequest(
        number=number,
        arrival_s=0.0,
        send_s=0.0,
        first_s=0.0,
        last_s=0.0,
        input_tokens=tokens_in,
        output_tokens=1,
        text_s=text_s,
        cached_tokens=cached,
        pod=pod,
    )
    for number, (pod, text_s, tokens_in, cached) in enumerate(
        (("a", 0.1, 100, 0), ("a", 0.3, 100, 80), ("b", 0.2, 200, 120))
    )
]


def prefix_aware(scores: Mapping[str, float], seed: int = 1) -> PrefixAware[Incoming, str]:
    def scores_of(incoming: Incoming) -> Mapping[str, float]:
        return scores

    return PrefixAware(scores_of, Random(seed))


def failing(incoming: Incoming) -> Mapping[str, float]:
    raise IndexerError("away")


@pytest.mark.parametrize(
    ("scores", "in_flight", "chosen"),
    [
        ({"a": 3.0, "c": 4.0}, (0, 0, 0), "c"),  # the longest prefix
        ({"b": 45.0}, (0, 5, 1), "a"),  # too busy for its prefix
        ({"elsewhere": 99.0, "b": 1.0}, (0, 0, 0), "b"),  # no pod of ours
    ],
)
def test_routing_prefers_cached_prefixes_unless_the_pod_is_too_busy(
    scores: dict[str, float], in_flight: tuple[int, int, int], chosen: str
) -> None:
    assert prefix_aware(scores).choose(ANY, PODS, dict(zip(PODS, in_flight, strict=True))) == chosen


def test_routing_falls_back_to_load_if_the_indexer_fails() -> None:
    policy = PrefixAware(failing, Random(1))
    assert policy.choose(ANY, PODS, {"a": 1, "b": 1, "c": 0}) == "c"
    assert policy.choose(ANY, PODS, {"a": 0, "b": 1, "c": 1}) == "a"
    assert policy.fallbacks == 2


def ask_indexer(
    path: str, body: object, answer: object
) -> tuple[Any, list[tuple[str, dict[str, Any]]]]:
    """The scores of a request, and the requests that the indexer received for them."""
    stub = stubs.Indexer(answer)
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    with stubs.serving(stub) as address:
        return Indexer(address).scores(Incoming(path, text)), stub.asked


@pytest.mark.parametrize(("path", "body", "question"), QUESTIONS)
def test_score_requests_contain_the_fields_that_determine_block_keys(
    path: str, body: dict[str, Any], question: tuple[str, dict[str, Any]]
) -> None:
    """A text as text, a conversation with what its template needs, and of a batch the first prompt."""
    answer = {} if question[0] == "/score_tokens" else {"pod": 3.0}
    assert ask_indexer(path, body, answer) == (answer, [question])


@pytest.mark.parametrize("body", [b"not JSON", b"[]", b'{"prompt": ""}', b"{}"])
def test_indexer_is_not_asked_about_an_invalid_request_body(body: bytes) -> None:
    assert ask_indexer(COMPLETIONS, body, 500) == ({}, [])


@pytest.mark.parametrize("answer", [500, b"no JSON", b"[1]", b'{"pod": "much"}'])
def test_invalid_indexer_response_raises_an_error(answer: object) -> None:
    with pytest.raises(IndexerError):
        ask_indexer(COMPLETIONS, {"prompt": "Once"}, answer)


def test_request_to_an_unreachable_or_silent_indexer_raises_an_error() -> None:
    with pytest.raises(IndexerError, match="not respond"):
        Indexer(stubs.unused_address()).scores(Incoming(COMPLETIONS, b'{"prompt": "Once"}'))
    talker = stubs.Talker(b"")
    with stubs.talking(talker) as address, pytest.raises(IndexerError):
        Indexer(address, timeout_s=0.05).scores(Incoming(COMPLETIONS, b'{"prompt": "Once"}'))
    assert talker.client_left.wait(stubs.PATIENCE_S)


def words(tokens: int, rng: Random) -> str:
    return " ".join(f"w{rng.randrange(10_000)}" for _ in range(tokens))


def small_workload(requests: int, groups: int, seed: int, prefix_tokens: int = 20) -> Workload:
    return make_workload(requests, groups, prefix_tokens, seed=seed, compose=words)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 2**31))
def test_workload_prompts_share_prefixes_within_groups(
    requests: int, groups: int, seed: int
) -> None:
    workload = small_workload(requests, groups, seed)
    assert small_workload(requests, groups, seed) == workload
    assert len(workload.prompts) == requests
    turns: Counter[str] = Counter()
    """Of each conversation, by its first prompt."""
    prefixes = defaultdict(set)
    for prompt in workload.prompts:
        talk = SEPARATOR.join(prompt.split(SEPARATOR)[:2])
        assert len(prompt.split(SEPARATOR)) == 2 + 2 * turns[talk] and turns[talk] < MAX_TURNS
        turns[talk] += 1
        heading, _, prefix = prompt.split(SEPARATOR)[0].partition("\n")
        prefixes[heading].add(prefix)
    assert len(prefixes) == min(groups, requests)
    assert all(len(texts) == 1 for texts in prefixes.values()), "a group has one prefix"
    counts = Counter(prompt.partition("\n")[0] for prompt in workload.prompts)
    assert max(counts.values()) - min(counts.values()) <= 1, "groups get the same share"
    longest = max(len(prompt.split()) for prompt in workload.prompts)
    assert abs(workload.longest_tokens - longest) <= 2  # the heading's words
    last_prompts = {}
    for talk in turns:
        prompts = [prompt for prompt in workload.prompts if prompt.startswith(talk)]
        last_prompts[talk] = max(prompts, key=len)
    unshared_tokens = sum(len(prompt.split()) - 22 for prompt in last_prompts.values())
    assert workload.distinct_tokens == 20 * len(prefixes) + unshared_tokens


def answers(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """A pod that streams `WHOLE` after a while."""
    gevent.sleep(0.05)
    start_response("200 OK", [("x-routed-to", "pod")])
    return [f"data: {json.dumps(event)}\n\n".encode() for event in WHOLE] + [b"data: [DONE]\n\n"]


def played(address: str) -> tuple[list[RecordedRequest], list[str]]:
    errors = list[str]()
    target = Target.from_url(f"http://{address}")
    client = RecordingClient(
        target,
        {},
        in_flight=None,
        now=time.perf_counter,
        on_send=ignore,
        on_error=errors.append,
    )
    return client.run([PlannedRequest(0.0, completion("m", "prompt", 4))]), errors


def test_time_to_first_text_is_measured_from_sending_the_request() -> None:
    with stubs.serving(answers) as address:
        [recorded], errors = played(address)
    assert (recorded.pod, recorded.input_tokens, recorded.cached_tokens, errors) == (
        "pod",
        32,
        16,
        [],
    )
    assert 0.04 < recorded.text_s - recorded.send_s < 5


def test_error_responses_and_refused_connections_count_as_failures() -> None:
    with stubs.serving(stubs.Indexer(429)) as address:
        assert played(address) == ([], ["HTTP/1.1 429 Bad: "])
    _, [error] = played(stubs.unused_address())
    assert "refused" in error


def summary(policy: str = "random", fallbacks: int = 0) -> PolicySummary:
    return summarize(
        policy,
        ANSWERED,
        ["status 502: no pod"],
        duration_s=2.0,
        pods=["a", "b", "c"],
        fallbacks=fallbacks,
    )


def test_latencies_of_a_routing_summary_exclude_failed_requests() -> None:
    counts = summary(fallbacks=3)
    assert (counts.requests, counts.failed, counts.fallbacks) == (4, 1, 3)
    assert counts.ttft_mean_s == pytest.approx(0.2) and counts.ttft_p50_s == pytest.approx(0.2)
    assert (counts.ttfts_s, counts.cached_share, counts.requests_per_s) == (
        (0.1, 0.2, 0.3),
        0.5,
        1.5,
    )
    assert counts.per_pod == {"a": 2, "b": 1, "c": 0}
    encoded = json.loads(msgspec.json.encode(counts))
    assert encoded["ttfts_s"] == [0.1, 0.2, 0.3] and set(encoded) == set(
        PolicySummary.__struct_fields__
    )


def test_fleet_table_has_a_row_per_routing_policy() -> None:
    lines = policy_table([summary(), summary("round-robin")]).splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1
    cells = [cell.strip() for cell in lines[3].strip("|").split("|")]
    assert cells == [
        "round-robin",
        "200 ms",
        "200 ms",
        "300 ms",
        "300 ms",
        "50%",
        "1.5",
        "0-2",
        "1",
    ]
    assert failure_notes([summary(fallbacks=2)]) == [
        "random: 2 requests were routed without the indexer, which failed",
        "random: 1 requests failed, most often with: status 502: no pod",
    ]
    assert (
        failure_notes([summarize("random", ANSWERED, [], duration_s=2.0, pods=["a"], fallbacks=0)])
        == []
    )


@pytest.mark.skipif(missing("fleet"), reason="matplotlib is optional")
def test_fleet_comparison_chart_is_written_as_a_png(tmp_path: Path) -> None:
    path = tmp_path / "fleet.png"
    draw_policies(
        [summary(policy) for policy in ("random", "round-robin", "prefix-aware")], "title", path
    )
    assert path.read_bytes().startswith(b"\x89PNG")
