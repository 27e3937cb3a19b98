"""The requests of a fleet: which prefixes they share, what the client measures of them, and the figures."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import gevent
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lab.fleet.report import Summary, draw, notes, summarize, table
from app.lab.load.workload import (
    TURNS,
    Completions,
    Sample,
    Workload,
    WorkloadRequest,
    arrivals,
    make_workload,
    play,
)
from config.installation import missing
from tests.fleet import stubs


def words(tokens: int, rng: Random) -> str:
    return " ".join(f"w{rng.randrange(10_000)}" for _ in range(tokens))


def made(requests: int, groups: int, seed: int, prefix_tokens: int = 20) -> Workload:
    return make_workload(requests, groups, prefix_tokens, seed, words)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 2**31))
def test_a_workload_shares_what_it_says(requests: int, groups: int, seed: int) -> None:
    workload = made(requests, groups, seed)
    assert made(requests, groups, seed) == workload
    counts = Counter(request.group for request in workload.requests)
    assert counts.total() == requests and len(counts) == min(groups, requests)
    assert max(counts.values()) - min(counts.values()) <= 1, "groups get the same share"
    turns: Counter[tuple[int, int]] = Counter()
    before: dict[tuple[int, int], str] = {}
    prefixes = defaultdict(set)
    for request in workload.requests:
        talk = request.group, request.user
        assert request.turn == turns[talk] < TURNS
        assert request.prompt.startswith(before.get(talk, "")) and request.prompt != before.get(talk)
        turns[talk], before[talk] = request.turn + 1, request.prompt
        prefixes[request.group].add(" ".join(request.prompt.split()[:22]))
    assert all(len(texts) == 1 for texts in prefixes.values()), "a group has one prefix"
    headings = {text.split(" w")[0] for texts in prefixes.values() for text in texts}
    assert len(headings) == len(prefixes), "which no other group has"
    longest = max(len(request.prompt.split()) for request in workload.requests)
    assert abs(workload.longest_tokens - longest) <= 2  # the heading's words
    own = sum(len(prompt.split()) - 22 for prompt in before.values())
    assert workload.distinct_tokens == 20 * len(prefixes) + own


def test_another_seed_makes_another_one_and_the_order_is_mixed() -> None:
    first, second = ({request.prompt for request in made(30, 3, seed).requests} for seed in (1, 2))
    assert not first & second
    groups = [request.group for request in made(60, 3, 1).requests]
    assert sum(a != b for a, b in zip(groups, groups[1:], strict=False)) > 20


def test_arrivals_come_at_their_rate() -> None:
    gaps = list(islice(arrivals(50.0, Random(3)), 5000))
    assert 95 < sum(gaps) < 105
    assert gaps == list(islice(arrivals(50.0, Random(3)), 5000))


USAGE = {"prompt_tokens": 32, "prompt_tokens_details": {"cached_tokens": 16}}
WHOLE = [{"choices": [{"text": ""}]}, {"choices": [{"text": "a"}]}, {"choices": [], "usage": USAGE}]


class Answers:
    """Streams `events`, and counts how many requests run at once; none ends before `together` do."""

    def __init__(
        self, events: Iterable[object], end: str = "data: [DONE]\n\n", lasts_s: float = 0.0, together: int = 1
    ) -> None:
        self._text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end
        self._lasts_s, self._together = lasts_s, together
        self._running = self.most = 0
        self.prompts: list[str] = []

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.prompts.append(json.loads(environ["wsgi.input"].read())["prompt"])
        self._running += 1
        self.most = max(self.most, self._running)
        stubs.eventually(lambda: self.most >= self._together)
        gevent.sleep(self._lasts_s)
        self._running -= 1
        start_response("200 OK", [("x-routed-to", "pod")])
        return [self._text.encode()]


def workload(count: int) -> Workload:
    return Workload(tuple(WorkloadRequest(0, 0, k, f"prompt {k}") for k in range(count)), 10, 10)


def played(
    address: str, count: int = 1, concurrency: int | None = None, step: Callable[[], None] = lambda: None
) -> list[Sample]:
    completions = Completions(workload(count), "m", 4, [0.0] * count)
    return play(completions, address, concurrency, time.perf_counter, step)


def sampled(server: Callable[..., Any]) -> Sample:
    with stubs.serving(server) as address:
        (sample,) = played(address)
        return sample


def test_a_sample_is_timed_from_the_sending_to_the_first_text() -> None:
    sample = sampled(Answers(WHOLE, lasts_s=0.05))
    assert sample == Sample("pod", sample.ttft_s, 32, 16) and 0.04 < sample.ttft_s < 5


@pytest.mark.parametrize(
    ("events", "end", "error"),
    [
        (WHOLE, "", "broke off"),
        ([], "data: [DONE]\n\n", "has no tokens"),
        (WHOLE[:2], "data: [DONE]\n\n", "or no usage"),
        ([WHOLE[0], WHOLE[2]], "data: [DONE]\n\n", "has no text"),
        ([{"error": {"message": "no"}}], "data: [DONE]\n\n", "has an error"),
        ([], "data: {nonsense\n\n", "cannot be read"),
    ],
)
def test_what_is_not_a_whole_answer_is_a_failure(events: list[object], end: str, error: str) -> None:
    assert error in sampled(Answers(events, end)).error


def test_a_refusal_and_nobody_there_are_failures() -> None:
    assert sampled(stubs.Indexer(429)).error == "HTTP/1.1 429 Bad: "
    (sample,) = played(stubs.unused_address())
    assert "refused" in sample.error


def test_no_more_requests_run_than_allowed_and_all_are_sent() -> None:
    server, steps = Answers(WHOLE, lasts_s=0.005), list[int]()
    with stubs.serving(server) as address:
        samples = played(address, 20, 3, lambda: steps.append(1))
    assert server.most == 3
    assert sorted(server.prompts) == sorted(f"prompt {k}" for k in range(20))
    assert server.prompts.index("prompt 19") > 15
    assert len(steps) == len(samples) == 20 and not any(sample.error for sample in samples)


def test_without_a_limit_requests_do_not_wait_for_each_other() -> None:
    server = Answers(WHOLE, together=8)
    with stubs.serving(server) as address:
        played(address, 8)
    assert server.most == 8


SAMPLES = [
    Sample("a", 0.1, 100, 0),
    Sample("a", 0.3, 100, 80),
    Sample("b", 0.2, 200, 120),
    Sample("", 0.0, 0, 0, error="status 502: no pod"),
]


def summary(policy: str = "random", fallbacks: int = 0) -> Summary:
    return summarize(policy, SAMPLES, 2.0, ["a", "b", "c"], fallbacks)


def test_a_summary_counts_what_was_answered() -> None:
    at = summary(fallbacks=3)
    assert (at.requests, at.failed, at.fallbacks) == (4, 1, 3)
    assert at.ttft_mean_s == pytest.approx(0.2) and at.ttft_p50_s == pytest.approx(0.2)
    assert (at.ttfts_s, at.cached_share, at.requests_per_s) == ((0.1, 0.2, 0.3), 0.5, 1.5)
    assert at.per_pod == {"a": 2, "b": 1, "c": 0}
    told = json.loads(msgspec.json.encode(at))
    assert told["ttfts_s"] == [0.1, 0.2, 0.3] and set(told) == set(Summary.__slots__)


def test_the_table_has_a_row_for_each_policy_and_failures_are_told_below_it() -> None:
    lines = table([summary(), summary("round-robin")]).splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1
    cells = [cell.strip() for cell in lines[3].strip("|").split("|")]
    assert cells == ["round-robin", "200 ms", "200 ms", "300 ms", "300 ms", "50%", "1.5", "0-2", "1"]
    assert notes([summary(fallbacks=2)]) == [
        "random: 2 requests were routed without the indexer, which failed",
        "random: 1 requests failed, most of them so: status 502: no pod",
    ]
    assert notes([summarize("random", SAMPLES[:3], 2.0, ["a"], 0)]) == []


def test_when_nothing_was_answered_there_are_no_times() -> None:
    at = summarize("random", SAMPLES[3:], 2.0, ["a"], 0)
    assert "| - |" in table([at]).replace("  ", "")
    told = json.loads(msgspec.json.encode(at))
    assert told["ttft_mean_s"] is None and told["requests_per_s"] == 0
    assert told["errors"] == ["status 502: no pod"]


@pytest.mark.skipif(missing("fleet"), reason="matplotlib is optional")
@pytest.mark.parametrize("policies", [["random"], ["random", "round-robin", "prefix-aware"]])
def test_the_picture_is_a_png(policies: list[str], tmp_path: Path) -> None:
    path = tmp_path / "fleet.png"
    draw([summary(policy) for policy in policies], "title", path)
    assert path.read_bytes().startswith(b"\x89PNG")
