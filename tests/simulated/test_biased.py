"""`logit_bias` and `allowed_token_ids` decide which tokens a simulated reply has."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from app.engine.core.wire import Sampling
from app.engine.simulated.endings import TokenChooser
from tests.engine.harness import Harness, embedded_tokenizer

END = embedded_tokenizer().eos_token_id or 0
ONE, TWO = embedded_tokenizer().encode("a")[0], embedded_tokenizer().encode("b")[0]
VOCABULARY = 1000


def played(sampling: dict[str, Any], **fields: Any) -> tuple[list[int], str | None]:
    """The ids of a reply and how it ended."""
    harness = Harness(mode="random")
    asked = {"limited": True, "max_tokens": 12, "ignore_eos": False, **fields}
    harness.ask(sampling=Sampling(**sampling), **asked)
    harness.clock.advance(5)
    return [token for event in harness.tokens() for token in event.ids], harness.finish()


@pytest.mark.parametrize("how", [{}, {"greedy": True}, {"seed": 3}, {"logprobs": 2}])
@pytest.mark.parametrize(
    ("sampling", "ids", "finish"),
    [
        ({"logit_bias": {ONE: 100}}, [ONE] * 12, "length"),
        ({"logit_bias": {ONE: 1e9, TWO: 50}}, [ONE] * 12, "length"),
        ({"allowed_token_ids": (TWO,)}, [TWO] * 12, "length"),
        ({"allowed_token_ids": (ONE, TWO), "logit_bias": {ONE: -100}}, [TWO] * 12, "length"),
        ({"logit_bias": {END: 100}}, [END], "stop"),
        ({"allowed_token_ids": (END,)}, [END], "stop"),
    ],
)
def test_a_bias_of_a_hundred_and_a_list_decide(
    sampling: dict[str, Any], ids: list[int], finish: str, how: dict[str, Any]
) -> None:
    assert played(sampling, **how) == (ids, finish)


def test_each_choice_has_its_tokens_and_its_log_probabilities() -> None:
    harness = Harness(mode="random")
    sampling = Sampling(allowed_token_ids=(ONE,))
    harness.ask(choices=2, sampling=sampling, limited=True, max_tokens=3, logprobs=2)
    harness.clock.advance(5)
    for index in range(2):
        entries = [entry for event in harness.tokens(index=index) for entry in event.logprobs or ()]
        assert [entry.token_id for entry in entries] == [ONE] * 3
        assert harness.said(index=index) == "aaa"


def test_an_end_that_is_forbidden_does_not_come_and_one_that_is_ignored_ends_nothing() -> None:
    assert played({"logit_bias": {END: -100}})[1] == "length"
    assert played({"logit_bias": {END: 100}}, ignore_eos=True) == ([END] * 12, "length")
    ids, finish = played({"logit_bias": {END: 100}}, min_tokens=4)
    assert (len(ids), ids[-1], finish) == (5, END, "stop")


def test_a_bias_of_minus_a_hundred_forbids() -> None:
    own = played({"logit_bias": {VOCABULARY: -1}}, seed=5)[0]
    forbidden = dict.fromkeys(own[:-1], -100.0)
    for how in ({"seed": 5}, {"greedy": True}, {}):
        assert not set(played({"logit_bias": forbidden}, **how)[0]) & set(forbidden)


def test_a_bias_between_shifts_the_odds_and_a_greedy_choice_is_the_likeliest_token() -> None:
    for bias, share in ((-100, 0), (0, 0), (6, 0.2), (7, 0.41), (100, 1)):
        rng, tokens = Random(1), TokenChooser(Sampling(logit_bias={7: bias}), VOCABULARY, False)
        chosen = Counter(tokens.choose(3, rng) for _ in range(5000))
        assert chosen[7] / 5000 == pytest.approx(share, abs=0.02) and set(chosen) <= {3, 7}
    for bias, token in ((5.0, 3), (9.0, 7)):
        assert TokenChooser(Sampling(logit_bias={7: bias}), VOCABULARY, True).choose(3, Random(1)) == token
