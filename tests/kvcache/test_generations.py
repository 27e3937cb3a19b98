"""Request keys of llm-d's index, generation by generation; numbers of the specifications, 7.2 and 13.2."""

from __future__ import annotations

import struct

import cbor2
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.fnv import fnv1a_64
from app.kvcache.hashing import low64
from app.kvindex.generations import GENERATIONS, GenerationName, KeyChain

MODEL = "test-model"

VECTORS: list[tuple[GenerationName, str, int | None, list[int]]] = [
    ("A", "", 780114917913990099, [12886194223934072076, 4237666839065381780]),
    ("A", "0", 17921330210090130494, [6090100016636780107, 3502488347233910028]),
    ("A", "42", 12056132650316601216, [9442596223568401980, 10401597220457154048]),
    ("A", "test-seed", 15025466860412879849, [12010745886394766586, 5235704029328986147]),
    ("B", "", None, [3304056276748800391, 17643853483570299582]),
    ("B", "42", None, [16300212363532267629, 8671309795006503672]),
    ("B", "test-seed", None, [14569201597282918352, 8381812155059759825]),
    ("C", "", 14695981039346656037, [14388088054628765202, 16757933279298582072]),
    ("C", "42", 571532774284038691, [1321676015697095315, 9386439422462522503]),
    ("C", "test-seed", 988467944923922317, [10791149624364167311, 1251395172206892911]),
    ("D", "", 17515353698173365712, [9540012594951042066, 16921089685996993662]),
    ("D", "42", 4073757287576237257, [3239622172847516705, 18365376266021390534]),
    ("D", "test-seed", 12573725349078860493, [9813823192409008620, 682745025325898328]),
    ("E", "", 658786475292698776, [13553460584553255540, 9887990258693334188]),
    ("E", "42", 15859082555703346732, [9464999881402841487, 9092100070645212763]),
    ("E", "test-seed", 13373400314837912325, [11694654239915353807, 15308833439905929429]),
]

WITH_IMAGE: list[tuple[GenerationName, str, int]] = [
    ("D", "", 5564236252450639516),
    ("D", "42", 2385753340144352865),
    ("D", "test-seed", 4186633043791118898),
    ("E", "", 17040855999153989087),
    ("E", "42", 263490605840217335),
    ("E", "test-seed", 1046574642920768175),
]

BLOCKS_OF_FOUR = [
    ("", [8615109728528615762, 9919698996376292487]),
    ("42", [202091728665380671, 15098511740520831590]),
    ("test-seed", [6328459140554894843, 10863496597865151821]),
]


def keys(chain: KeyChain, ids: range, *images: str, model: str = MODEL) -> list[int]:
    extras = [images, *[None] * (len(ids) // chain.block_size - 1)] if images else None
    return [low64(link) for link in chain.links(chain.root(model), ids, extras)]


@pytest.mark.parametrize(("generation", "seed", "root", "expected"), VECTORS)
def test_keys_are_llm_ds(
    generation: GenerationName, seed: str, root: int | None, expected: list[int]
) -> None:
    chain = KeyChain(generation, 16, seed)
    assert root is None or low64(chain.root(MODEL)) == root
    assert keys(chain, range(1, 33)) == expected == keys(chain, range(1, 33))


@pytest.mark.parametrize(("generation", "seed", "expected"), WITH_IMAGE)
def test_an_image_changes_the_keys(generation: GenerationName, seed: str, expected: int) -> None:
    chain = KeyChain(generation, 16, seed)
    plain = keys(chain, range(1, 33))
    shown = keys(chain, range(1, 33), "image_hash_A")
    assert shown[0] == expected
    assert shown[1] != plain[1]


@pytest.mark.parametrize("generation", ["A", "B", "C"])
def test_early_generations_see_no_images(generation: GenerationName) -> None:
    chain = KeyChain(generation, 16)
    assert keys(chain, range(1, 33), "image_hash_A") == keys(chain, range(1, 33))


@pytest.mark.parametrize(("seed", "expected"), BLOCKS_OF_FOUR)
def test_generation_c_in_blocks_of_four(seed: str, expected: list[int]) -> None:
    assert keys(KeyChain("C", 4, seed), range(1, 9)) == expected


def test_the_simulators_keys_are_generation_d() -> None:
    assert low64(KeyChain("D", 8).root("testmodel")) == 14134231071176785998
    eight, sixteen = range(1, 17), range(1, 33)
    assert keys(KeyChain("D", 8), eight, model="testmodel") == [2545606293339042816, 8958804595300103129]
    assert keys(KeyChain("D", 16), sixteen, model="testmodel") == [16213904221320957624, 15354827318752259859]
    assert keys(KeyChain("D", 16, "42"), sixteen, model="testmodel") == [
        12404379209620774239,
        11464917070091514477,
    ]
    assert keys(KeyChain("D", 8), eight, "h1", model="testmodel") == [
        1204396038804491897,
        12149296371317706768,
    ]


def test_the_first_simulators_keys_are_generation_a() -> None:
    assert keys(KeyChain("A", 8), range(1, 17)) == [8565633689886292673, 1365280974284707021]
    assert keys(KeyChain("A", 8, "42"), range(1, 17)) == [3398220529416926051, 4103281032283978826]


@pytest.mark.parametrize("generation", ["D", "E"])
def test_late_generations_keep_models_apart(generation: GenerationName) -> None:
    chain = KeyChain(generation, 16)
    assert not set(keys(chain, range(1, 33))) & set(keys(chain, range(1, 33), model="other"))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_chain_goes_on_from_any_link(generation: GenerationName) -> None:
    chain = KeyChain(generation, 4, "s")
    whole = chain.links(chain.root(MODEL), range(40))
    assert chain.links(whole[3], range(16, 40)) == whole[4:]
    assert sum(chain.parts(chain.root(MODEL), range(40)), ()) == tuple(whole)


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), min_size=3, max_size=3))
def test_generation_c_is_fnv_of_cbor_for_ids_of_every_width(parent: int, ids: list[int]) -> None:
    [link] = KeyChain("C", 3).links(parent.to_bytes(8, "big"), ids)
    assert low64(link) == fnv1a_64(cbor2.dumps([parent, ids, None]))


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2), st.text())
def test_generation_e_is_xxh64_of_numbers_and_texts(parent: int, ids: list[int], image: str) -> None:
    [link] = KeyChain("E", 2).links(parent.to_bytes(8, "big"), ids, [(image,)])
    text = image.encode()
    payload = struct.pack("<QIIQ", parent, *ids, len(text)) + text
    assert low64(link) == xxhash.xxh64_intdigest(payload)


@pytest.mark.parametrize(("generation", "ids"), [("D", [1, -1]), ("E", [1, 2**32])])
def test_ids_that_no_token_has_are_refused(generation: GenerationName, ids: list[int]) -> None:
    with pytest.raises(ValueError):
        KeyChain(generation, 2).links(bytes(8), ids)


def test_an_unknown_generation_is_refused() -> None:
    with pytest.raises(ValueError):
        KeyChain("F", 16)  # type: ignore[arg-type]
