"""Request keys: the vectors of the specification (7.2), and the fast form against the plain one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.hashing import low64
from app.kvindex.generations import GENERATIONS, GenerationName, KeyChain
from app.kvindex.keys import Features, request_keys
from tests.kvcache.test_generations import VECTORS, WITH_IMAGE

TOKENS = list(range(1, 33))


@pytest.mark.parametrize(
    ("generation", "seed", "expected"), [(generation, seed, keys) for generation, seed, _, keys in VECTORS]
)
def test_keys_are_those_of_llm_d(generation: GenerationName, seed: str, expected: list[int]) -> None:
    keys = request_keys(generation, 16, seed)
    assert keys.keys(keys.root("test-model"), [*TOKENS, 99]) == expected


@pytest.mark.parametrize(("generation", "seed", "expected"), WITH_IMAGE)
def test_images_change_keys_as_they_do_in_llm_d(generation: GenerationName, seed: str, expected: int) -> None:
    keys = request_keys(generation, 16, seed)
    features: list[Features] = [("image_hash_A",), None]
    assert keys.keys(keys.root("test-model"), TOKENS, features)[0] == expected


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_chain_can_be_continued_from_any_key(generation: GenerationName) -> None:
    keys = request_keys(generation, 4)
    whole = keys.keys(keys.root("m"), TOKENS)
    assert keys.keys(whole[2], TOKENS[12:]) == whole[3:]


def test_generation_b_cannot_continue_a_chain_that_it_has_not_seen() -> None:
    with pytest.raises(KeyError):
        request_keys("B", 4).keys(12345, TOKENS)


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("bad", [[-1] * 16, [1 << 32] * 16, ["a"] * 16])
def test_what_is_no_token_id_is_refused(generation: GenerationName, bad: list[int]) -> None:
    keys = request_keys(generation, 16)
    with pytest.raises(ValueError):
        keys.keys(keys.root("m"), bad)


def test_a_block_without_tokens_and_an_unknown_generation_are_refused() -> None:
    with pytest.raises(ValueError):
        request_keys("E", 0)
    with pytest.raises(ValueError):
        request_keys("Z", 16)  # type: ignore[arg-type]


def test_models_and_adapters_have_keys_of_their_own_from_d_on() -> None:
    for generation in ("D", "E"):
        keys = request_keys(generation, 4)
        assert keys.root("a") != keys.root("b")


texts = st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple)


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=40), st.integers(1, 9), st.data())
def test_the_fast_form_of_e_equals_the_plain_one(tokens: list[int], size: int, data: st.DataObject) -> None:
    fast, plain = request_keys("E", size, "seed"), KeyChain("E", size, "seed")
    features = data.draw(
        st.none() | st.lists(texts, min_size=len(tokens) // size, max_size=len(tokens) // size)
    )
    expected = plain.links(plain.root("m"), tokens, features)
    assert fast.keys(fast.root("m"), tokens, features) == list(map(low64, expected))


def test_half_of_a_surrogate_pair_is_a_text_like_any_other() -> None:
    keys = request_keys("E", 1)
    assert keys.keys(1, [1], [("\ud800",)]) != keys.keys(1, [1])
