"""The requests that share prefixes."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from app.load.workload import TURNS, Workload, arrivals, make_workload


def words(tokens: int, rng: Random) -> str:
    return " ".join(f"w{rng.randrange(10_000)}" for _ in range(tokens))


def made(requests: int, groups: int, seed: int, prefix_tokens: int = 20) -> Workload:
    return make_workload(requests, groups, prefix_tokens, seed, words)


sizes = st.integers(1, 60), st.integers(1, 8), st.integers(0, 2**31)


@given(*sizes)
def test_the_same_seed_makes_the_same_workload(requests: int, groups: int, seed: int) -> None:
    assert made(requests, groups, seed) == made(requests, groups, seed)


def test_another_seed_makes_another_one() -> None:
    first, second = made(30, 3, 1), made(30, 3, 2)
    assert not {request.prompt for request in first.requests} & {
        request.prompt for request in second.requests
    }


@given(*sizes)
def test_groups_get_the_same_share(requests: int, groups: int, seed: int) -> None:
    counts = Counter(request.group for request in made(requests, groups, seed).requests)
    assert counts.total() == requests
    assert len(counts) == min(groups, requests)
    assert max(counts.values()) - min(counts[group] for group in range(min(groups, requests))) <= 1


@given(*sizes)
def test_turns_follow_each_other_and_begin_with_the_one_before(requests: int, groups: int, seed: int) -> None:
    before: dict[tuple[int, int], str] = {}
    turns: Counter[tuple[int, int]] = Counter()
    for request in made(requests, groups, seed).requests:
        talk = request.group, request.user
        assert request.turn == turns[talk] < TURNS
        assert request.prompt.startswith(before.get(talk, "")) and request.prompt != before.get(talk)
        turns[talk], before[talk] = request.turn + 1, request.prompt


@given(*sizes)
def test_a_group_shares_its_prefix_and_nothing_with_others(requests: int, groups: int, seed: int) -> None:
    prefixes = defaultdict(set)
    for request in made(requests, groups, seed).requests:
        prefixes[request.group].add(" ".join(request.prompt.split()[:22]))
    assert all(len(texts) == 1 for texts in prefixes.values())
    headings = {text.split(" w")[0] for texts in prefixes.values() for text in texts}
    assert len(headings) == len(prefixes)


@given(*sizes)
def test_tokens_are_about_those_that_are_told(requests: int, groups: int, seed: int) -> None:
    workload = made(requests, groups, seed)
    longest = max(len(request.prompt.split()) for request in workload.requests)
    assert abs(workload.longest_tokens - longest) <= 2  # the heading's words
    whole = {(request.group, request.user): len(request.prompt.split()) - 22 for request in workload.requests}
    shared = 20 * len({request.group for request in workload.requests})
    assert workload.distinct_tokens == shared + sum(whole.values())


def test_the_order_is_mixed() -> None:
    groups = [request.group for request in made(60, 3, 1).requests]
    assert groups != sorted(groups)
    assert sum(a != b for a, b in zip(groups, groups[1:], strict=False)) > 20


def test_arrivals_come_at_their_rate() -> None:
    gaps = list(islice(arrivals(50.0, Random(3)), 5000))
    assert 95 < sum(gaps) < 105
    assert gaps == list(islice(arrivals(50.0, Random(3)), 5000))
