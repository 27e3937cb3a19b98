"""Block hashes equal vLLM's.

The numbers V1 to V19 are those of the KV cache specification, section 7.2.
"""

import hashlib
import tracemalloc
from collections.abc import Callable
from random import Random

import cbor2
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from app.core.engine.kvcache.hashing import (
    PART_BLOCKS,
    Algorithm,
    BlockHasher,
    Extra,
    ExtraKeys,
    Placeholder,
    low64,
)
from tests.core.kvcache.caches import ALICE

IDS = range(1, 33)

VECTORS: list[tuple[str, Algorithm, str | None, str, list[str]]] = [
    (
        "V1", "sha256_cbor", "0", "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
        ["202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea",
         "4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf"],
    ),
    (
        "V2", "sha256_cbor", "42", "9fa6eb003f14425eb9c8e6baacfbcaab26257357b829c7bfa74ffcc4f31c1780",
        ["476e88fb0c175c0b4ef0343e158b5157c2ac537d37d97830e235fcc84bc5706d",
         "9c89b9f2af12de95c90eb76195371e73760b4df4aa7617587856ae50e4ba5af8"],
    ),
    (
        "V3", "sha256_cbor", None, "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
        ["cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682",
         "2533ea50426b36e9e4d68296cac6bce8cf602e46957d0fe40b368b33d87bf3bf"],
    ),
    (
        "V4", "sha256", "0", "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c",
        ["bea72b7d33de03c1aa715efbb492d0e0d3801f00c1f985756896072ae8b31325",
         "2744667f6645310ff670b0c5d7c64987ffa5940de5a549f17d92dcbb5b559e31"],
    ),
    (
        "V5", "sha256", "42", "c0bc02c9fc92a4944335649961b9e55cc41b194bece4801e8c6ef0f0f3f5884a",
        ["ab60b49ca9a9b0887663de625c0580e1181278ecf8db8f2c3e914f537a14a904",
         "79686caeea1e89aa2e96cc765ee13f51a334810c9da45044b4c7b53bce78f5b1"],
    ),
    (
        "V6", "sha256", None, "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
        ["7b255da405e1d722823892e4fef187b4d8ac78215d7f0dd2137bb037547f4caf",
         "8e717becdc2054b7a3223b7b844f462c0db0ac86287b752b16d077ad0843c577"],
    ),
    (
        "V7", "xxhash_cbor", "0", "1ebe36576dcb573f26b99533a20aaeca",
        ["c2d7a75070fc6d6b0c3fb0af456c1009", "93add93233ea572fb2e2b1685bac6f8d"],
    ),
    (
        "V8", "xxhash_cbor", "42", "a9d2e63407fce1a26c9dc9d7fa2d7caf",
        ["0fb2aa342687f4f2c5d5180a8e77e1ba", "582244f9b603902c7376da2d82801747"],
    ),
    (
        "V9", "xxhash", "0", "6fb31cc38bba6066183f7f2104b9c051",
        ["6ba7d7fc1608e5f0a4612b1b0c87458f", "dbd92304eaa08219c5cf8f4ce18166b6"],
    ),
    (
        "V10", "xxhash", "42", "b6cdd80ea04b31ad0b9fc22fff500882",
        ["97def49eac72515533a50128571d6913", "7554c8530234e65c4cd06e804516eb73"],
    ),
]  # fmt: skip

EXTRAS: list[tuple[str, list[Extra], list[int]]] = [
    ("V12", [(1,)] * 2, [8360640614431738854, 7423757071684903686]),
    ("V13", [("Alice",)] * 2, [4635395825380872671, 4678448753685193912]),
    ("V14", [(("lora", "Alice", "/p/alice"),)] * 2, [1564442050896922047, 9255044869881964905]),
    ("V15", [("tenant-a",), None], [7809141496629315471, 2934992745852730763]),
    ("V16", [(("cache_salt", "tenant-a"),), None], [18004764957418570026, 2176423041615275570]),
    ("V17", [("img-1",)] * 2, [8817235727458927434, 162509787549312867]),
    ("V18", [(("img-1", 4),), (("img-1", -12),)], [803902504788187887, 17208516582300983813]),
    (
        "V19",
        [(("mm", "img-1", 4),), (("mm", "img-1", -12),)],
        [10327407240189147075, 16601439576050719493],
    ),
]


def hasher(
    algorithm: Algorithm = "sha256_cbor", block_size: int = 16, seed: str | None = "0"
) -> BlockHasher:
    return BlockHasher(algorithm, block_size, seed, Random(0))


@pytest.mark.parametrize(
    ("algorithm", "seed", "first_parent", "hashes"),
    [vector[1:] for vector in VECTORS],
    ids=[vector[0] for vector in VECTORS],
)
def test_block_hashes_equal_those_of_vllm(
    algorithm: Algorithm, seed: str | None, first_parent: str, hashes: list[str]
) -> None:
    ours = hasher(algorithm, seed=seed)
    assert ours.none_hash.hex() == first_parent
    for _ in range(2):  # computed, then remembered
        assert [block.hex() for block in ours.hashes(IDS)] == hashes


def test_block_hashes_for_block_size_four_equal_those_of_vllm() -> None:
    hashes = hasher(block_size=4, seed="42").hashes(range(1, 9))
    assert [block.hex() for block in hashes] == [
        "0a99040f25d8a5f22275b867f403918da98c9d140eaea10f5319d4d1d84429df",
        "c415b4994e9ed1d993bc50f53dc3c4e18c5200f39d1787ce9ba2dacb65221d14",
    ]
    assert [low64(block) for block in hashes] == [5988051177307384287, 11214766589215907092]


@pytest.mark.parametrize(
    ("extras", "numbers"), [row[1:] for row in EXTRAS], ids=[row[0] for row in EXTRAS]
)
def test_block_hashes_with_extra_keys_equal_those_of_vllm(
    extras: list[Extra], numbers: list[int]
) -> None:
    ours = hasher(seed="42")
    for _ in range(2):
        assert [low64(block) for block in ours.hashes(IDS, extras)] == numbers


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_xxhash_uses_a_random_seed_if_none_is_set(algorithm: Algorithm) -> None:
    seed = Random(7).randbytes(32).hex()
    drawn, seeded, other = (
        BlockHasher(algorithm, 16, text, Random(number)).none_hash
        for text, number in ((None, 7), (seed, 0), (None, 2))
    )
    assert drawn == seeded and drawn != other, "anew in every server"


ids_of_any_width = st.integers(0, 300) | st.integers(60_000, 70_000) | st.integers(2**31, 2**33)
extra_keys = st.none() | st.tuples(st.tuples(st.text(max_size=30), st.integers(-100, 100)))


@given(st.lists(ids_of_any_width, max_size=60), st.integers(1, 30), st.data())
def test_block_hashes_equal_those_of_a_cbor_library_for_ids_of_any_size(
    ids: list[int], block_size: int, data: st.DataObject
) -> None:
    count = len(ids) // block_size
    extras = data.draw(st.none() | st.lists(extra_keys, min_size=count, max_size=count))
    digests: dict[Algorithm, Callable[[bytes], bytes]] = {
        "sha256_cbor": lambda payload: hashlib.sha256(payload).digest(),
        "xxhash_cbor": xxhash.xxh3_128_digest,
    }
    for algorithm, digest in digests.items():
        ours = hasher(algorithm, block_size)
        parent = ours.none_hash
        expected = []
        for block in range(count):
            tokens = tuple(ids[block * block_size : (block + 1) * block_size])
            extra = extras[block] if extras else None
            parent = digest(cbor2.dumps((parent, tokens, extra), canonical=True))
            expected.append(parent)
        assert ours.hashes(ids, extras) == expected
        assert ours.hashes(ids, extras) == expected


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=30), max_size=30), st.integers(2, 8)
)
def test_evicting_cached_hashes_changes_no_hash(prompts: list[list[int]], entries: int) -> None:
    forgetful = BlockHasher("sha256_cbor", 2, "0", Random(0), entries * 500)
    for prompt in prompts:
        assert forgetful.hashes(prompt) == hasher(block_size=2).hashes(prompt)


@pytest.mark.parametrize("algorithm", ["sha256_cbor", "xxhash_cbor"])
@pytest.mark.parametrize("blocks", [10, PART_BLOCKS])
def test_estimated_memory_of_cached_hashes_is_an_upper_bound(
    algorithm: Algorithm, blocks: int
) -> None:
    ours = hasher(algorithm)
    ours.hashes(range(16 * blocks))
    reckoned = ours.memo.size_bytes
    tracemalloc.start()
    try:
        memory_before, _ = tracemalloc.get_traced_memory()
        for first in range(1, 101):
            ours.hashes([first, *range(1, 16 * blocks)])
        taken = tracemalloc.get_traced_memory()[0] - memory_before
    finally:
        tracemalloc.stop()
    assert taken <= ours.memo.size_bytes - reckoned < 2 * taken


LORA = ("lora", "Alice", "/p/alice")
SALT = ("cache_salt", "s1")


def test_extra_keys_are_assigned_to_the_blocks_of_their_tokens() -> None:
    keys = ExtraKeys(16, ALICE, "s1", [Placeholder("second", 14, 20), Placeholder("first", 1, 2)])
    first = [("mm", "first", 1), ("mm", "second", 14)]
    second = ("mm", "second", -2)
    assert keys.hashed(0, 4) == [
        (LORA, *first, SALT),
        (LORA, second),
        (LORA, ("mm", "second", -18)),
        (LORA,),
    ]
    published = [["Alice", ["first", 1], ["second", 14], "s1"], ["Alice", ["second", -2]]]
    published += [["Alice", ["second", -18]], ["Alice"]]
    assert (keys.published(0, 4), keys.published(3, 4)) == (published, published[3:])


@pytest.mark.parametrize(
    ("tags", "hashed"), [(True, [("mm", "a", 1), ("mm", "b", 4)]), (False, [("b", 4)])]
)
def test_block_with_the_reply_has_only_the_last_image_in_older_hashes(
    tags: bool, hashed: list[object]
) -> None:
    images = [Placeholder("a", 17, 2), Placeholder("b", 20, 3)]
    keys = ExtraKeys(16, placeholders=images, tags=tags, prompt_tokens=25)
    assert keys.hashed(1, 2) == [tuple(hashed)]
    assert keys.published(1, 2) == [[["a", 1], ["b", 4]]]
    whole = ExtraKeys(16, placeholders=images, tags=False, prompt_tokens=32)
    assert whole.hashed(1, 2) == [(("a", 1), ("b", 4))]


spans = st.tuples(st.integers(0, 100), st.integers(0, 60))


@given(st.lists(spans, max_size=6), st.integers(1, 20))
def test_image_key_is_part_of_exactly_the_blocks_that_contain_the_image(
    media: list[tuple[int, int]], block_size: int
) -> None:
    images = [
        Placeholder(str(n), offset, length) for n, (offset, length) in enumerate(media) if length
    ]
    published = ExtraKeys(block_size, placeholders=images).published(0, 200)
    for image in images:
        tokens = range(image.offset, image.offset + image.length)
        blocks = {token // block_size for token in tokens}
        inside = {
            block
            for block, keys in enumerate(published)
            for name, offset in keys or []
            if name == image.identifier and offset == image.offset - block * block_size
        }
        assert inside == blocks
