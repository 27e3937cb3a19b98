"""Longest prefixes, against a plain loop over sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.backend import Holders, bits
from app.kvindex.scorer import score_prefixes
from tests.kvindex.engines import source

TIERS = ["gpu", "cpu", "disk"]


def holders(*pods: str) -> Holders:
    made = Holders(100)
    for pod in pods:
        made.number(source(pod), 0)
    return made


def test_the_example_of_llm_d() -> None:
    """Blocks 1001 to 1006: a on gpu has 1, 2, 3 (also cpu) and 6; b on cpu has 4 and 5."""
    found = [(0b01,), (0b01,), (0b01, 0b01), (0, 0b10), (0, 0b10), (0b01,)]
    weights = {"gpu": 1.0, "cpu": 0.5}
    (score,) = score_prefixes(found, 6, 0b11, holders("a", "b"), TIERS[:2], weights)
    assert (score.pod, score.score, score.tiers) == ("a", 3.0, {"gpu": 3})
    found[2] = (0, 0b01)
    (score,) = score_prefixes(found, 6, 0b11, holders("a", "b"), TIERS[:2], weights)
    assert (score.score, score.tiers, score.match_ratio) == (2.5, {"gpu": 2, "cpu": 1}, 0.5)


masks = st.integers(0, (1 << 12) - 1)
blocks = st.lists(st.lists(masks, min_size=1, max_size=3).map(tuple), max_size=20)


EXACT = {"gpu": 1.0, "cpu": 0.75, "disk": 0.5}
grouped = st.lists(st.booleans(), min_size=12, max_size=12)


@given(blocks, grouped, masks, st.integers(1, 3), st.integers(1, 4))
def test_of_an_engine_the_group_counts_that_has_least(
    found: list[tuple[int, ...]], scored: list[bool], left: int, groups: int, repeat: int
) -> None:
    """Twelve holders in groups of engines; some give no points, some are gone."""
    found = [copies for copies in found for _ in range(repeat)]
    everybody = Holders(12)
    for number, is_scored in enumerate(scored):
        everybody.number(source(f"pod{number // groups}"), number % groups, is_scored)
    candidates = everybody.mask("m")
    for number in bits(left):
        everybody.release(number)
    scores = score_prefixes(found, max(1, len(found)), candidates, everybody, TIERS, EXACT)
    expected: dict[str, set[tuple[int, float]]] = {}
    for number, is_scored in enumerate(scored):
        if is_scored and not left >> number & 1:
            has = alone(found, number)
            shares = expected.setdefault(f"pod{number // groups}", {has})
            least = min(shares | {has})[0]
            expected[f"pod{number // groups}"] = {share for share in shares | {has} if share[0] == least}
    assert {score.pod for score in scores} == {pod for pod, shares in expected.items() if min(shares)[0]}
    assert all((score.matched, score.score) in expected[score.pod] for score in scores)


def alone(found: list[tuple[int, ...]], number: int) -> tuple[int, float]:
    """How many blocks a holder has from the first one on, and what they are worth."""
    weights = [EXACT[tier] for tier in TIERS]
    matched, worth = 0, 0.0
    for copies in found:
        here = [weight for weight, mask in zip(weights, copies, strict=False) if mask >> number & 1]
        if not here:
            break
        matched, worth = matched + 1, worth + max(here)
    return matched, worth


def test_adapters_are_known_by_the_holders_that_have_blocks_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kvindex.backend.MOST_ADAPTERS", 3)
    holders = Holders(3)
    for each in map(source, "ab"):
        holders.number(each, 0)
    for name, number in (("a", 0), ("b", 0), ("a", 1), ("c", 1), ("a", 1), ("d", 1)):
        holders.serves(name, number)
    assert [holders.mask(name) for name in "abcd"] == [0b11, 0, 0b10, 0b10]  # b was used longest ago
    for number, left in ((1, [0b01, 0, 0, 0]), (0, [0] * 4)):
        holders.release(number)
        assert [holders.mask(name) for name in "abcd"] == left
    assert len(holders._adapters) == 0
