"""What a sequence finds in the cache, takes of it and leaves in it."""

from __future__ import annotations

import gc

import pytest

from app.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored
from app.kvcache.prompt import Placeholder
from tests.kvcache.caches import ALICE, BOB, begin, serve, small_cache, summary, tokens


def test_a_prompt_seen_before_is_found_but_for_its_partial_block() -> None:
    cache = small_cache()
    assert serve(cache, tokens(0, 10)) == 0
    assert serve(cache, tokens(0, 10)) == 8


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    cache = small_cache()
    serve(cache, tokens(0, 8))
    assert serve(cache, tokens(0, 8)) == 4
    assert serve(cache, tokens(0, 9)) == 8
    assert serve(cache, tokens(0, 4)) == 0


def test_the_last_token_is_computed_though_it_is_a_block_and_all_there_is() -> None:
    cache = small_cache(block_size=1)
    assert [serve(cache, [7]), serve(cache, [7]), serve(cache, [7, 8])] == [0, 0, 1]


def test_a_longer_prompt_finds_what_it_shares_and_a_changed_one_what_comes_before_the_change() -> None:
    cache = small_cache()
    serve(cache, tokens(0, 12))
    assert serve(cache, tokens(0, 8) + tokens(50, 8)) == 8
    assert serve(cache, [99, *tokens(1, 11)]) == 0


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


def test_blocks_of_a_reply_are_stored_when_the_token_behind_them_is_there() -> None:
    cache = small_cache()
    begin(cache, "r", tokens(0, 6))
    assert summary(cache.take_events()) == [0]
    cache.append("r", [6])
    cache.append("r", [7])
    assert cache.take_events() == []
    cache.append("r", [8])
    assert summary(cache.take_events()) == [4]
    assert serve(cache, tokens(0, 9)) == 8


def test_several_tokens_of_one_step_store_their_blocks_with_one_event() -> None:
    cache = small_cache()
    begin(cache, "r", tokens(0, 4))
    cache.append("r", tokens(4, 9))
    first, second = cache.take_events()
    assert isinstance(first, BlockStored) and isinstance(second, BlockStored)
    assert second.token_ids == tokens(4, 8)
    assert second.parent_block_hash == first.block_hashes[-1]
    cache.check_integrity()


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


def test_a_hit_is_announced_to_nobody() -> None:
    cache = small_cache()
    serve(cache, tokens(0, 10))
    assert cache.take_events()
    serve(cache, tokens(0, 10))
    assert cache.take_events() == []


def test_a_block_computed_again_is_announced_again_and_removed_as_often() -> None:
    cache = small_cache(3)
    serve(cache, tokens(0, 8))
    serve(cache, tokens(0, 8))
    first, again = cache.take_events()
    assert isinstance(first, BlockStored) and isinstance(again, BlockStored)
    assert again.block_hashes == first.block_hashes[1:]
    assert again.parent_block_hash == first.block_hashes[0]
    serve(cache, tokens(50, 12))
    removed = [
        hash_
        for event in cache.take_events()
        if isinstance(event, BlockRemoved)
        for hash_ in event.block_hashes
    ]
    assert sorted(map(str, removed)) == sorted(map(str, [*first.block_hashes, *again.block_hashes]))


def test_one_of_two_equal_blocks_is_still_found_when_the_other_is_gone() -> None:
    cache = small_cache(4)
    serve(cache, tokens(0, 8))
    begin(cache, "r", tokens(0, 8))  # uses the first block, and computes the second again
    begin(cache, "s", tokens(50, 8))  # takes the free block, and that of the first copy
    assert len([event for event in cache.take_events() if isinstance(event, BlockRemoved)]) == 1
    cache.check_integrity()
    cache.finish("s")
    assert serve(cache, tokens(0, 9)) == 8


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


def test_what_was_used_longest_ago_makes_room_first() -> None:
    cache = small_cache(4)
    for start in (0, 10, 20):
        serve(cache, tokens(start, 5))  # a full block and a partial one, which is empty afterwards
    serve(cache, tokens(0, 5))
    serve(cache, tokens(30, 9))
    assert serve(cache, tokens(0, 5)) == 4
    assert begin(cache, "r", tokens(20, 5)) == 0
    assert begin(cache, "s", tokens(10, 5)) == 0


def test_a_removal_comes_before_what_it_made_room_for() -> None:
    cache = small_cache(1)
    serve(cache, tokens(0, 4))
    cache.take_events()
    serve(cache, tokens(50, 4))
    assert [type(event) for event in cache.take_events()] == [BlockRemoved, BlockStored]


def test_empty_blocks_are_used_before_cached_ones() -> None:
    cache = small_cache(4)
    serve(cache, tokens(0, 6))
    serve(cache, tokens(50, 8))
    assert serve(cache, tokens(0, 6)) == 4


def test_a_prompt_that_does_not_fit_changes_nothing() -> None:
    cache = small_cache(4)
    begin(cache, "r", tokens(0, 12))
    cache.take_events()
    prompt = cache.prompt(tokens(0, 24))
    assert not cache.can_allocate(prompt)
    assert cache.begin("s", prompt) is None
    assert cache.take_events() == []
    assert (len(cache), cache.free) == (1, 1)
    cache.check_integrity()


def test_free_blocks_that_are_hits_are_not_counted_twice() -> None:
    cache = small_cache(4)
    serve(cache, tokens(0, 8))
    begin(cache, "r", tokens(50, 5))
    assert not cache.can_allocate(cache.prompt(tokens(0, 12)))
    assert cache.can_allocate(cache.prompt(tokens(0, 8)))


def test_a_shared_prefix_needs_its_blocks_once() -> None:
    cache = small_cache(4)
    begin(cache, "r", tokens(0, 9))
    assert begin(cache, "s", tokens(0, 9)) == 8
    assert cache.free == 0
    cache.finish("r")
    assert cache.free == 1
    cache.check_integrity()


def test_a_token_without_room_has_it_once_a_sequence_is_preempted() -> None:
    cache = small_cache(2)
    begin(cache, "r", tokens(0, 4))
    begin(cache, "s", tokens(50, 4))
    assert cache.append("r", [4])
    assert not cache.append("r", [5])
    assert not cache.append("r", [])
    cache.check_integrity()
    cache.finish("s")
    assert cache.append("r", [])
    assert cache.usage == 1.0


def test_a_sequence_that_went_on_without_room_stores_the_right_tokens_later() -> None:
    cache = small_cache(4)
    begin(cache, "r", tokens(0, 4))
    begin(cache, "s", tokens(50, 12))
    cache.take_events()
    for token in tokens(4, 6):
        cache.append("r", [token])
    assert cache.take_events() == []
    cache.finish("s")
    assert cache.append("r", [10])
    stored = [event for event in cache.take_events() if isinstance(event, BlockStored)]
    assert [event.token_ids for event in stored] == [tokens(4, 4)]
    cache.finish("r")
    assert serve(cache, tokens(0, 9)) == 8


def test_usage_is_the_share_of_blocks_in_use_without_the_null_block() -> None:
    cache = small_cache(8)
    assert (cache.capacity, cache.usage) == (8, 0.0)
    begin(cache, "r", tokens(0, 9))
    assert cache.usage == pytest.approx(3 / 8)
    cache.append("r", tokens(9, 4))
    assert cache.usage == pytest.approx(3 / 8)
    cache.append("r", [13])
    assert cache.usage == pytest.approx(4 / 8)
    cache.finish("r")
    assert cache.usage == 0.0


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


def test_blocks_of_an_adapter_that_is_back_have_their_old_place() -> None:
    cache = small_cache(3)
    serve(cache, tokens(0, 4), adapter=ALICE)
    serve(cache, tokens(0, 4), adapter=BOB)
    serve(cache, tokens(0, 4))
    cache.unload_adapter("Bob")
    cache.load_adapter("Bob")
    cache.check_integrity()
    serve(cache, tokens(50, 4))
    assert serve(cache, tokens(0, 5), adapter=BOB) == 4


def test_a_sequence_of_an_adapter_unloaded_meanwhile_leaves_blocks_that_go_first() -> None:
    cache = small_cache(2)
    serve(cache, tokens(0, 4))
    begin(cache, "r", tokens(0, 4), ALICE)
    cache.unload_adapter("Alice")
    cache.finish("r")
    begin(cache, "s", tokens(50, 4))
    assert begin(cache, "t", tokens(0, 4)) == 0
    cache.check_integrity()
    cache.finish("t")
    assert serve(cache, tokens(0, 5)) is None


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


@pytest.mark.slow
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


def test_an_event_of_all_being_cleared_comes_even_when_nothing_was_cached() -> None:
    cache = small_cache()
    assert cache.reset()
    assert cache.take_events() == [AllBlocksCleared()]
