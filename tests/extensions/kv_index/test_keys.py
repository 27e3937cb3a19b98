"""Keys of prompts:

the vectors of the specifications (7.2 and 13.2), the formulas written out, features.
"""

import struct
import tracemalloc
from array import array

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.kvcache.hashing import ExtraKeys, Placeholder
from app.core.engine.lora import Adapter
from app.extensions.kv_index.features import Features, published_features, requested_features
from app.extensions.kv_index.keys import PART_BLOCKS, PrefixKeyCache, RequestKeys

MODEL = "test-model"
TOKENS = list(range(1, 33))

VECTORS = [
    ("", 658786475292698776, [13553460584553255540, 9887990258693334188], 17040855999153989087),
    ("42", 15859082555703346732, [9464999881402841487, 9092100070645212763], 263490605840217335),
    (
        "test-seed",
        13373400314837912325,
        [11694654239915353807, 15308833439905929429],
        1046574642920768175,
    ),
]
"""Seed, root, keys, and the first key with an image."""
SIZE = 2
PART = PART_BLOCKS * SIZE


@pytest.mark.parametrize(("seed", "root", "expected", "with_image"), VECTORS)
def test_block_keys_equal_those_of_llm_d(
    seed: str, root: int, expected: list[int], with_image: int
) -> None:
    keys = RequestKeys(16, seed)
    for _ in range(2):  # computed, then remembered
        assert keys.root(MODEL) == root
        assert keys.keys(root, [*TOKENS, 99]) == expected
    first, second = keys.keys(root, TOKENS, [("image_hash_A",), None])
    assert first == with_image and second != expected[1]


@pytest.mark.parametrize("bad", [[-1] * 16, [1 << 32] * 16, ["a"] * 16])
def test_invalid_token_ids_are_rejected(bad: list[int]) -> None:
    with pytest.raises(ValueError):
        RequestKeys(16).keys(1, bad)


ids = st.lists(st.integers(0, 2**32 - 1), max_size=40) | st.lists(
    st.integers(0, 2**32 - 1), min_size=130, max_size=330
)
texts = st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple)


@settings(max_examples=30, deadline=None)
@given(ids, st.integers(1, 9), st.data())
def test_block_key_is_the_hash_of_the_parent_key_and_the_block_content(
    tokens: list[int], size: int, data: st.DataObject
) -> None:
    blocks = len(tokens) // size
    features = data.draw(st.none() | st.lists(texts, min_size=blocks, max_size=blocks))
    parent = 77
    expected = []
    for block in range(blocks):
        payload = struct.pack(f"<Q{size}I", parent, *tokens[block * size : (block + 1) * size])
        for text in (features[block] or ()) if features else ():
            payload += struct.pack("<Q", len(text.encode())) + text.encode()
        parent = xxhash.xxh64_intdigest(payload)
        expected.append(parent)
    assert RequestKeys(size, "seed").keys(77, tokens, features) == expected


@st.composite
def draw_prompt(draw: st.DrawFn) -> list[int]:
    """Up to four runs of one repeated token."""
    prompt: list[int] = []
    for _ in range(draw(st.integers(0, 4))):
        token = draw(st.integers(0, 3))
        prompt += [token] * draw(st.integers(1, 2 * PART + 3))
    return prompt


prompts = draw_prompt()


@settings(max_examples=40, deadline=None)
@given(drawn_prompts=st.lists(prompts, max_size=8))
def test_cached_block_keys_equal_computed_block_keys(drawn_prompts: list[list[int]]) -> None:
    keys = RequestKeys(SIZE)
    cache = PrefixKeyCache(keys, limit_bytes=20_000)
    for prompt in drawn_prompts:
        assert cache.keys(5, prompt) == keys.keys(5, prompt)
        assert cache.keys(6, array("I", prompt)) == keys.keys(6, prompt)
        assert cache.parts.size_bytes <= cache.parts.limit_bytes


@pytest.mark.parametrize("extra_tokens", [0, 1, SIZE, PART - 1])
def test_keys_of_long_prompts_are_computed_with_pauses(
    monkeypatch: pytest.MonkeyPatch, extra_tokens: int
) -> None:
    pauses: list[int] = []
    monkeypatch.setattr("app.extensions.kv_index.keys.PARTS_PER_PAUSE", 2)
    monkeypatch.setattr("app.extensions.kv_index.keys.pause_if_possible", lambda: pauses.append(1))
    keys = RequestKeys(SIZE)
    cache = PrefixKeyCache(keys)
    prompt = list(range(6 * PART + extra_tokens))
    for tokens in (prompt[: 3 * PART], prompt, prompt[: 2 * PART]):
        assert cache.keys(5, tokens) == keys.keys(5, tokens)
    assert len(pauses) == 1 + (2 if not extra_tokens else 3)


def test_hash_collisions_do_not_change_cached_block_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def equal_hash(data: bytes, seed: int) -> int:
        return 1

    monkeypatch.setattr("app.extensions.kv_index.keys.xxh3_64_intdigest", equal_hash)
    keys = RequestKeys(SIZE)
    cache = PrefixKeyCache(keys)
    for parent, first in ((1, 0), (1, 9), (2, 0), (1, 0)):
        prompt = [first] * 2 * PART
        assert cache.keys(parent, prompt) == keys.keys(parent, prompt)


def test_cached_prompt_parts_take_no_more_memory_than_estimated() -> None:
    cache = PrefixKeyCache(RequestKeys(16))
    tracemalloc.start()
    try:
        empty, _ = tracemalloc.get_traced_memory()
        for first in range(20):
            cache.keys(1, [first] * 5 * PART_BLOCKS * 16)
        taken = tracemalloc.get_traced_memory()[0] - empty
    finally:
        tracemalloc.stop()
    assert len(cache.parts) == 100
    assert taken <= cache.parts.size_bytes < 1.1 * taken


@pytest.mark.parametrize(
    ("keys", "adapter", "features"),
    [
        (["alice"], None, ("alice",)),
        (["alice"], "alice", None),
        (["alice", "alice"], "alice", ("alice",)),  # a salt of the same name
        (["bob"], "alice", ("bob",)),
        (["img", "alice"], "alice", ("img", "alice")),
        ([["img", 4], "salt"], None, ("img", "salt")),
        ([["img", 4], ["img", 90]], None, ("img",)),
        ([b"\x01\xff"], None, ("01ff",)),
        ([[b"\x01\xff", 3]], None, ("01ff",)),
        ([[], None, 5, [5], 1.5, "salt"], None, ("salt",)),
        ([[]], None, None),
        ([], "alice", None),
        (None, "alice", None),
    ],
)
def test_extra_key_features_are_image_identifiers_and_the_salt(
    keys: list[object] | None, adapter: str | None, features: Features
) -> None:
    assert published_features([["before"], keys, None], adapter) == [("before",), features, None]


identifiers = st.sampled_from(["a", "b", "c"])
images = st.lists(st.tuples(identifiers, st.integers(0, 40), st.integers(1, 20)), max_size=4)
sizes = st.integers(1, 9)


def image(identifier: str, offset: int, length: int) -> Placeholder:
    return Placeholder(identifier, offset, length)


@given(st.integers(1, 12), sizes, images, st.none() | st.just("salt"), st.booleans())
def test_block_features_of_requests_equal_those_of_events(
    blocks: int, size: int, shown: list[tuple[str, int, int]], salt: str | None, adapted: bool
) -> None:
    media = [image(*fields) for fields in shown]
    adapter = Adapter("alice") if adapted else None
    published = ExtraKeys(size, adapter, salt, media).published(0, blocks)
    assert requested_features(blocks, size, media, salt) == published_features(
        published, "alice" if adapted else None
    )
