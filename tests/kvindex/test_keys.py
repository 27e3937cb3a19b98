"""Request keys: the vectors of the specification (7.2), and the fast form against the plain one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.generations import GENERATIONS, GenerationName, KeyChain
from app.kvcache.hashing import low64
from app.kvindex.keys import Features, request_keys

TOKENS = list(range(1, 33))
VECTORS: dict[GenerationName, dict[str, list[int]]] = {
    "A": {"42": [9442596223568401980, 10401597220457154048]},
    "B": {"42": [16300212363532267629, 8671309795006503672]},
    "C": {"42": [1321676015697095315, 9386439422462522503]},
    "D": {
        "": [9540012594951042066, 16921089685996993662],
        "42": [3239622172847516705, 18365376266021390534],
    },
    "E": {
        "": [13553460584553255540, 9887990258693334188],
        "42": [9464999881402841487, 9092100070645212763],
        "test-seed": [11694654239915353807, 15308833439905929429],
    },
}
IMAGE: dict[GenerationName, dict[str, int]] = {
    "D": {"": 5564236252450639516, "42": 2385753340144352865},
    "E": {"": 17040855999153989087, "42": 263490605840217335},
}


@pytest.mark.parametrize(
    ("generation", "seed", "expected"),
    [(name, seed, keys) for name, seeds in VECTORS.items() for seed, keys in seeds.items()],
)
def test_keys_are_those_of_llm_d(generation: GenerationName, seed: str, expected: list[int]) -> None:
    keys = request_keys(generation, 16, seed)
    assert keys.keys(keys.root("test-model"), [*TOKENS, 99]) == expected


@pytest.mark.parametrize(
    ("generation", "seed", "expected"),
    [(name, seed, key) for name, seeds in IMAGE.items() for seed, key in seeds.items()],
)
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
