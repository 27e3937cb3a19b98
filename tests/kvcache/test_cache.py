"""What a sequence finds in the cache, takes of it and leaves in it."""

from __future__ import annotations

import gc

import pytest

from app.engine.kvcache.events import BlockStored
from app.engine.kvcache.prompt import Placeholder
from tests.kvcache.caches import ALICE, BOB, begin, serve, small_cache, summary, tokens


def test_a_prompt_seen_before_is_found_but_for_its_partial_block() -> None:
    cache = small_cache()
    assert serve(cache, tokens(0, 10)) == 0
    assert serve(cache, tokens(0, 10)) == 8


def test_salts_adapters_and_images_do_not_find_each_others_blocks() -> None:
    cache = small_cache(40)
    image = (Placeholder("img", 1, 2),)
    for _ in range(2):
        found = [
            serve(cache, tokens(0, 10)),
            serve(cache, tokens(0, 10), salt="s1"),
            serve(cache, tokens(0, 10), salt="s2"),
            serve(cache, tokens(0, 10), adapter=ALICE),
            serve(cache, tokens(0, 10), adapter=BOB),
            serve(cache, tokens(0, 10), placeholders=image),
        ]
    assert found == [8] * 6


def test_a_placeholder_that_is_not_in_the_prompt_counts_for_nothing() -> None:
    cache = small_cache()
    serve(cache, tokens(0, 10))
    assert serve(cache, tokens(0, 10), placeholders=(Placeholder("img", 2, 10**12),)) == 8


@pytest.mark.parametrize("image", [Placeholder("img", 0, 4), Placeholder("img", 4, 5)])
def test_an_image_may_begin_or_end_with_the_prompt(image: Placeholder) -> None:
    cache = small_cache()
    serve(cache, tokens(0, 9))
    shared = image.offset
    assert serve(cache, tokens(0, 9), placeholders=(image,)) == shared
    assert serve(cache, tokens(0, 9), placeholders=(image,)) == 8


def test_a_prompt_of_less_than_a_block_is_cached_with_its_reply_and_its_salt() -> None:
    cache = small_cache()
    serve(cache, [1, 2], reply=[3, 4, 5], salt="s")
    [event] = cache.take_events()
    assert isinstance(event, BlockStored)
    assert event.parent_block_hash is None
    assert event.extra_keys == [["s"]]
    assert serve(cache, tokens(1, 5), salt="s") == 4


def test_an_event_names_the_adapter() -> None:
    cache = small_cache()
    serve(cache, tokens(0, 4), adapter=ALICE)
    [event] = cache.take_events()
    assert isinstance(event, BlockStored)
    assert (event.lora_id, event.lora_name, event.extra_keys) == (7, "Alice", [["Alice"]])


def test_the_tail_of_a_sequence_makes_room_first() -> None:
    cache = small_cache(4)
    serve(cache, tokens(0, 16))
    [stored] = cache.take_events()
    assert isinstance(stored, BlockStored)
    begin(cache, "r", tokens(50, 8))
    removed = summary(cache.take_events())[:4]
    assert removed == ["-", stored.block_hashes[3], "-", stored.block_hashes[2]]
    cache.finish("r")
    assert serve(cache, tokens(0, 9)) == 8


def test_whether_a_sequence_fits_at_all() -> None:
    cache = small_cache(2)
    assert cache.fits_ever(8) and not cache.fits_ever(9)


def test_a_reset_waits_for_sequences_and_is_the_first_event_of_the_next_step() -> None:
    cache = small_cache()
    begin(cache, "r", tokens(0, 9))
    assert not cache.reset()
    cache.finish("r")
    cache.take_events()
    assert cache.reset()
    assert serve(cache, tokens(0, 9)) == 0
    assert summary(cache.take_events()) == ["clear", 0, 4]


def test_a_discard_takes_the_cache_from_sequences_that_run() -> None:
    cache = small_cache()
    begin(cache, "r", tokens(0, 9))
    cache.discard()
    assert cache.append("r", tokens(9, 8))
    cache.check_integrity()
    cache.finish("r")
    assert summary(cache.take_events()) == [0, 4, "clear"]
    assert serve(cache, tokens(0, 9)) == 0


def test_without_caching_blocks_are_counted_and_nothing_is_found() -> None:
    cache = small_cache(caching=False)
    assert serve(cache, tokens(0, 9), reply=tokens(9, 9)) == 0
    assert begin(cache, "r", tokens(0, 9)) == 0
    assert cache.usage == pytest.approx(3 / 8)
    assert cache.take_events() == []


def test_caching_can_be_switched_while_sequences_run() -> None:
    cache = small_cache(16)
    begin(cache, "cached", tokens(0, 5))
    cache.caching = False
    begin(cache, "not cached", tokens(50, 5))
    cache.caching = True
    for name, start in (("cached", 5), ("not cached", 55)):
        cache.append(name, tokens(start, 5))
        cache.finish(name)
    cache.check_integrity()
    assert serve(cache, tokens(0, 10)) == 8
    assert serve(cache, tokens(50, 10)) == 0


def test_events_may_be_unwanted() -> None:
    cache = small_cache(2, events=False)
    serve(cache, tokens(0, 8))
    assert serve(cache, tokens(0, 8)) == 4
    serve(cache, tokens(50, 8))
    cache.reset()
    assert cache.take_events() == []


def test_events_may_carry_whole_hashes() -> None:
    cache = small_cache(int_hashes=False)
    serve(cache, tokens(0, 8))
    [event] = cache.take_events()
    assert isinstance(event, BlockStored)
    assert [len(hash_) for hash_ in event.block_hashes if isinstance(hash_, bytes)] == [32, 32]


def test_blocks_of_unloaded_adapters_make_room_first() -> None:
    cache = small_cache(3)
    serve(cache, tokens(0, 4))
    serve(cache, tokens(0, 4), adapter=ALICE)
    serve(cache, tokens(0, 4), adapter=BOB)
    cache.unload_adapter("Bob")
    serve(cache, tokens(50, 4))
    assert begin(cache, "alice", tokens(0, 5), ALICE) == 4
    cache.finish("alice")
    assert begin(cache, "bob", tokens(0, 5), BOB) == 0


def test_a_request_has_blocks_once() -> None:
    cache = small_cache()
    begin(cache, "r", tokens(0, 4))
    with pytest.raises(ValueError):
        begin(cache, "r", tokens(0, 4))


def test_the_end_of_an_unknown_request_is_nothing() -> None:
    cache = small_cache()
    cache.finish("nobody")
    with pytest.raises(KeyError):
        cache.append("nobody", [1])


def test_a_cache_needs_a_block_besides_the_null_block() -> None:
    with pytest.raises(ValueError):
        small_cache(0)


def test_an_empty_prompt_takes_nothing() -> None:
    cache = small_cache()
    assert serve(cache, []) == 0
    assert cache.take_events() == []


def test_a_long_prompt_can_be_hashed_with_pauses() -> None:
    cache = small_cache(1000)
    prompt = cache.prompt(tokens(0, 1000))
    assert sum(1 for _ in prompt.hashing()) == 4
    assert list(prompt.hashing()) == []
    assert len(prompt.hashes) == 250
    assert prompt.hashes == cache.prompt(tokens(0, 1000)).hashes


def test_serving_leaves_no_garbage_that_only_the_collector_finds() -> None:
    cache = small_cache(20)
    serve(cache, tokens(0, 30), reply=tokens(100, 10))
    gc.collect()
    gc.disable()
    try:
        for start in range(0, 1000, 50):
            serve(cache, tokens(start, 30), reply=tokens(start, 10), adapter=ALICE, salt="s")
            cache.take_events()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_prompt_that_is_computed_in_parts_stores_the_blocks_that_are_computed_to_their_end() -> None:
    cache = small_cache()
    prompt = cache.prompt(tokens(0, 14))
    assert cache.begin("r", prompt, blocks=2) == 0
    assert (cache.free, cache.take_events()) == (6, [])
    cache.compute("r", prompt, 7)
    assert summary(cache.take_events()) == [0]
    cache.grow("r", 2)
    cache.compute("r", prompt, 14)
    assert (cache.free, summary(cache.take_events())) == (4, [4, 8])
    for token in (14, 15):
        cache.write("r", [token])
    assert cache.take_events() == []
    cache.write("r", [16])
    assert summary(cache.take_events()) == [12]
    cache.check_integrity()
    cache.finish("r")
    assert serve(cache, tokens(0, 17)) == 16


def test_a_prompt_in_parts_begins_behind_what_is_found() -> None:
    cache = small_cache()
    serve(cache, tokens(0, 9))
    prompt = cache.prompt(tokens(0, 20))
    assert cache.begin("r", prompt, blocks=3) == 8
    assert (len(cache.block_numbers("r")), cache.free) == (3, 5)
    assert cache.block_numbers("r", 2) == cache.block_numbers("r")[2:]
    cache.discard()
    cache.take_events()
    cache.compute("r", prompt, 12)
    assert cache.take_events() == []
    cache.finish("r")
    assert serve(cache, tokens(0, 20)) == 0


def test_a_preempted_sequence_finds_its_own_blocks_again_and_no_others() -> None:
    cache = small_cache()
    prompt = cache.prompt(tokens(0, 6), salt="s")
    cache.begin("r", prompt)
    cache.append("r", [6, 7, 8])
    cache.finish("r")
    assert cache.begin("r", cache.again(prompt, tokens(0, 9))) == 8
    cache.finish("r")
    assert serve(cache, tokens(0, 9)) == 0
    cache.caching = False
    assert cache.begin("r", cache.again(prompt, tokens(0, 9))) == 0
