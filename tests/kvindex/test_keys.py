"""Request keys: the vectors of the specifications (7.2 and 13.2), and the formulas written out."""

from __future__ import annotations

import struct
from array import array
from sys import getsizeof

import cbor2
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.keys import (
    GENERATIONS,
    LINK_BLOCKS,
    Features,
    Generation,
    RequestKeys,
    fnv1a_64,
    packed_ids,
    request_keys,
)

MODEL = "test-model"
TOKENS = list(range(1, 33))

VECTORS: list[tuple[Generation, str, int, list[int]]] = [
    ("D", "", 17515353698173365712, [9540012594951042066, 16921089685996993662]),
    ("D", "42", 4073757287576237257, [3239622172847516705, 18365376266021390534]),
    ("D", "test-seed", 12573725349078860493, [9813823192409008620, 682745025325898328]),
    ("E", "", 658786475292698776, [13553460584553255540, 9887990258693334188]),
    ("E", "42", 15859082555703346732, [9464999881402841487, 9092100070645212763]),
    ("E", "test-seed", 13373400314837912325, [11694654239915353807, 15308833439905929429]),
]

WITH_IMAGE: list[tuple[Generation, str, int]] = [
    ("D", "", 5564236252450639516),
    ("D", "42", 2385753340144352865),
    ("D", "test-seed", 4186633043791118898),
    ("E", "", 17040855999153989087),
    ("E", "42", 263490605840217335),
    ("E", "test-seed", 1046574642920768175),
]


def keys_of(keys: RequestKeys, tokens: range, *images: str, model: str = MODEL) -> list[int]:
    features: list[Features] = [images, *[None] * (len(tokens) // keys.block_size - 1)]
    return keys.keys(keys.root(model), tokens, features if images else None)


@pytest.mark.parametrize(("generation", "seed", "root", "expected"), VECTORS)
def test_keys_are_those_of_llm_d(generation: Generation, seed: str, root: int, expected: list[int]) -> None:
    keys = request_keys(generation, 16, seed)
    for _ in range(2):  # computed, then remembered
        assert keys.root(MODEL) == root
        assert keys.keys(root, [*TOKENS, 99]) == expected


@pytest.mark.parametrize(("generation", "seed", "expected"), WITH_IMAGE)
def test_images_change_keys_as_they_do_in_llm_d(generation: Generation, seed: str, expected: int) -> None:
    keys = request_keys(generation, 16, seed)
    shown, plain = keys_of(keys, range(1, 33), "image_hash_A"), keys_of(keys, range(1, 33))
    assert shown[0] == expected and shown[1] != plain[1]


def test_the_keys_of_llm_ds_simulator_are_generation_d() -> None:
    eight, sixteen, model = range(1, 17), range(1, 33), "testmodel"
    assert request_keys("D", 8).root(model) == 14134231071176785998
    assert keys_of(request_keys("D", 8), eight, model=model) == [2545606293339042816, 8958804595300103129]
    assert keys_of(request_keys("D", 16), sixteen, model=model) == [
        16213904221320957624,
        15354827318752259859,
    ]
    assert keys_of(request_keys("D", 16, "42"), sixteen, model=model) == [
        12404379209620774239,
        11464917070091514477,
    ]
    assert keys_of(request_keys("D", 8), eight, "h1", model=model) == [
        1204396038804491897,
        12149296371317706768,
    ]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_chain_can_be_continued_from_any_key(generation: Generation) -> None:
    keys = request_keys(generation, 4)
    whole = keys.keys(keys.root("m"), TOKENS)
    assert keys.keys(whole[2], TOKENS[12:]) == whole[3:]


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("bad", [[-1] * 16, [1 << 32] * 16, ["a"] * 16])
def test_what_is_no_token_id_is_refused(generation: Generation, bad: list[int]) -> None:
    keys = request_keys(generation, 16)
    with pytest.raises(ValueError):
        keys.keys(keys.root("m"), bad)


@pytest.mark.parametrize("generation", ["A", "B", "C", "Z"])
def test_other_generations_are_refused(generation: str) -> None:
    with pytest.raises(ValueError):
        request_keys(generation, 16)  # type: ignore[arg-type]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_block_without_tokens_is_refused(generation: Generation) -> None:
    with pytest.raises(ValueError):
        request_keys(generation, 0)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_models_and_adapters_have_keys_of_their_own(generation: Generation) -> None:
    keys = request_keys(generation, 16)
    assert not set(keys_of(keys, range(1, 33))) & set(keys_of(keys, range(1, 33), model="other"))


ids = st.lists(st.integers(0, 2**32 - 1), max_size=40) | st.lists(
    st.integers(0, 2**32 - 1), min_size=130, max_size=330
)
texts = st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple)


@pytest.mark.slow
@given(ids, st.integers(1, 9), st.data())
def test_generation_e_is_xxh64_of_numbers_and_texts(
    tokens: list[int], size: int, data: st.DataObject
) -> None:
    blocks = len(tokens) // size
    features = data.draw(st.none() | st.lists(texts, min_size=blocks, max_size=blocks))
    parent, expected = 77, []
    for block in range(blocks):
        payload = struct.pack(f"<Q{size}I", parent, *tokens[block * size : (block + 1) * size])
        for text in (features[block] or ()) if features else ():
            payload += struct.pack("<Q", len(text.encode())) + text.encode()
        parent = xxhash.xxh64_intdigest(payload)
        expected.append(parent)
    assert request_keys("E", size, "seed").keys(77, tokens, features) == expected


@pytest.mark.slow
@given(ids, st.integers(1, 9), st.data())
def test_generation_d_is_fnv_of_cbor(tokens: list[int], size: int, data: st.DataObject) -> None:
    blocks = len(tokens) // size
    features = data.draw(st.none() | st.lists(texts, min_size=blocks, max_size=blocks))
    parent, expected = 77, []
    for block in range(blocks):
        shown = [{"Hash": text} for text in (features[block] or ())] if features else []
        part = tokens[block * size : (block + 1) * size]
        parent = fnv1a_64(cbor2.dumps([parent, part, shown or None], canonical=True))
        expected.append(parent)
    assert request_keys("D", size, "seed").keys(77, tokens, features) == expected


def test_half_of_a_surrogate_pair_is_a_text_like_any_other() -> None:
    keys = request_keys("E", 1)
    assert keys.keys(1, [1], [("\ud800",)]) != keys.keys(1, [1])


AROUND_LINKS = [times * LINK_BLOCKS + more for times in (1, 2) for more in (-1, 0, 1)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("blocks", [0, 7, 8, 9, *AROUND_LINKS])
def test_a_prompt_of_any_length_has_the_keys_of_its_blocks_one_by_one(size: int, blocks: int) -> None:
    keys = request_keys("E", size)
    tokens = [number * 7919 for number in range(blocks * size)]
    parent, expected = 5, []
    for start in range(0, len(tokens), size):
        (parent,) = keys.keys(parent, tokens[start : start + size])
        expected.append(parent)
    for rest in range(size):
        assert keys.keys(5, tokens + [9] * rest) == expected


def test_a_block_without_its_features_is_a_mistake() -> None:
    features: list[Features] = [("a",)]
    for wrong in (features, features * 3):
        with pytest.raises(ValueError):
            request_keys("E", 2).keys(1, [1, 2, 3, 4], wrong)


def test_packed_ids_stay_as_they_are() -> None:
    packed = packed_ids([1, 2])
    assert packed_ids(packed) is packed == array("I", [1, 2])
    for other in (array("Q", [1, 2]), (1, 2), range(1, 3)):
        assert packed_ids(other) == packed


@pytest.mark.parametrize("generation", GENERATIONS)
def test_names_of_models_take_no_more_memory_than_is_reckoned(generation: Generation) -> None:
    keys = request_keys(generation, 16)
    for model in ("🎉" * 5_000, "東" * 5_000 + "🎉"):
        before = keys.roots.size_bytes
        keys.root(model)
        assert getsizeof(model) <= keys.roots.size_bytes - before < 1.1 * getsizeof(model)
