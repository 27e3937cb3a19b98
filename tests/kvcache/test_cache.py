"""What a sequence finds in the cache, takes of it and leaves in it."""

from __future__ import annotations

import gc

import gevent
import pytest

from app.engine.kvcache.events import BlockStored
from app.engine.kvcache.prompt import Placeholder
from tests.kvcache.caches import (
    ALICE,
    BOB,
    Replying,
    admit,
    begin,
    check,
    serve,
    small_cache,
    summary,
    tokens,
)


def test_salts_adapters_and_images_do_not_find_each_others_blocks() -> None:
    cache = small_cache(40)
    image = (Placeholder("img", 1, 2),)
    outside = (Placeholder("img", 2, 10**12),)
    cases = (
        {},
        {"salt": "s1"},
        {"salt": "s2"},
        {"adapter": ALICE},
        {"adapter": BOB},
        {"placeholders": image},
    )
    assert [serve(cache, tokens(0, 10), **options) for options in cases] == [0] * 6
    assert [serve(cache, tokens(0, 10), **options) for options in cases] == [8] * 6
    assert serve(cache, tokens(0, 10), placeholders=outside) == 8, "a placeholder outside counts for nothing"


@pytest.mark.parametrize("image", [Placeholder("img", 0, 4), Placeholder("img", 4, 5)])
def test_an_image_may_begin_or_end_with_the_prompt(image: Placeholder) -> None:
    cache = small_cache()
    serve(cache, tokens(0, 9))
    assert serve(cache, tokens(0, 9), placeholders=(image,)) == image.offset
    assert serve(cache, tokens(0, 9), placeholders=(image,)) == 8


def test_events_carry_salt_adapter_and_hashes() -> None:
    cache = small_cache()
    serve(cache, [1, 2], reply=[3, 4, 5], salt="s")  # a prompt of less than a block
    serve(cache, tokens(0, 4), adapter=ALICE)
    salted, adapted = cache.take_events()
    assert isinstance(salted, BlockStored) and isinstance(adapted, BlockStored)
    assert (salted.parent_block_hash, salted.extra_keys) == (None, [["s"]])
    assert (adapted.lora_id, adapted.lora_name, adapted.extra_keys) == (7, "Alice", [["Alice"]])
    assert serve(cache, tokens(1, 5), salt="s") == 4
    whole = small_cache(int_hashes=False)
    serve(whole, tokens(0, 8))
    [event] = whole.take_events()
    assert isinstance(event, BlockStored)
    assert [len(hash_) for hash_ in event.block_hashes if isinstance(hash_, bytes)] == [32, 32]
    unwanted = small_cache(2, events=False)
    assert [serve(unwanted, tokens(0, 8)), serve(unwanted, tokens(0, 8)), serve(unwanted, tokens(50, 8))]
    assert unwanted.reset() and unwanted.take_events() == []


def test_the_tail_of_a_sequence_makes_room_first() -> None:
    cache = small_cache(4)
    serve(cache, tokens(0, 16))
    [stored] = cache.take_events()
    assert isinstance(stored, BlockStored)
    sequence = begin(cache, tokens(50, 8))
    removed = summary(cache.take_events())[:4]
    assert removed == ["-", stored.block_hashes[3], "-", stored.block_hashes[2]]
    cache.release(sequence)
    assert serve(cache, tokens(0, 9)) == 8


def test_a_reset_waits_for_sequences_and_is_the_first_event_of_the_next_step() -> None:
    cache = small_cache()
    sequence = begin(cache, tokens(0, 9))
    assert not cache.reset()
    cache.release(sequence)
    cache.take_events()
    assert cache.reset()
    assert serve(cache, tokens(0, 9)) == 0
    assert summary(cache.take_events()) == ["clear", 0, 4]


def test_a_discard_takes_the_cache_from_sequences_that_run() -> None:
    cache = small_cache()
    sequence = begin(cache, tokens(0, 9))
    cache.discard()
    assert sequence.append(cache, tokens(9, 8))
    check(cache)
    cache.release(sequence)
    assert summary(cache.take_events()) == [0, 4, "clear"]
    assert serve(cache, tokens(0, 9)) == 0


def test_caching_can_be_switched_while_sequences_run() -> None:
    cache = small_cache(16)
    cached = begin(cache, tokens(0, 5))
    cache.caching = False
    other = begin(cache, tokens(50, 5))
    assert (cache.pool.usage, len(cache.take_events())) == (4 / 16, 1)
    cache.caching = True
    for sequence, start in ((cached, 5), (other, 55)):
        sequence.append(cache, tokens(start, 5))
        cache.release(sequence)
    check(cache)
    assert [serve(cache, tokens(0, 10)), serve(cache, tokens(50, 10))] == [8, 0]


def test_blocks_of_unloaded_adapters_make_room_first() -> None:
    cache = small_cache(3)
    serve(cache, tokens(0, 4))
    serve(cache, tokens(0, 4), adapter=ALICE)
    serve(cache, tokens(0, 4), adapter=BOB)
    cache.pool.unload_adapter("Bob")
    serve(cache, tokens(50, 4))
    assert serve(cache, tokens(0, 5), adapter=ALICE) == 4
    assert serve(cache, tokens(0, 5), adapter=BOB) == 0


def test_the_edges() -> None:
    cache = small_cache()
    assert serve(cache, []) == 0 and cache.take_events() == []
    cache.release(Replying(cache, [1]))  # has no blocks
    with pytest.raises(ValueError):
        small_cache(0)


def test_a_long_prompt_is_hashed_with_pauses() -> None:
    cache, turns = small_cache(1000), []
    other = gevent.spawn(turns.append, 1)
    prompt = gevent.spawn(lambda: (cache.make_prompt(tokens(0, 1000)), bool(turns))).get()
    other.join()
    assert prompt[1] and len(prompt[0].hashes or ()) == 250


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
    sequence = Replying(cache, tokens(0, 14))
    assert admit(cache, sequence, blocks=2) == 0
    assert (cache.free, cache.take_events()) == (6, [])
    sequence.computed = 7
    cache.filled(sequence)
    assert summary(cache.take_events()) == [0]
    cache.grow(sequence, 2)
    sequence.computed = 14
    cache.filled(sequence)
    assert (cache.free, summary(cache.take_events())) == (4, [4, 8])
    sequence.reply += [14, 15, 16]
    cache.extend(sequence, 2)
    assert cache.take_events() == []
    cache.extend(sequence, 1)
    assert summary(cache.take_events()) == [12]
    check(cache)
    cache.release(sequence)
    assert serve(cache, tokens(0, 17)) == 16


def test_a_prompt_in_parts_begins_behind_what_is_found() -> None:
    cache = small_cache()
    serve(cache, tokens(0, 9))
    sequence = Replying(cache, tokens(0, 20))
    assert admit(cache, sequence, blocks=3) == 8
    assert (len(sequence.block_numbers()), cache.free) == (3, 5)
    assert sequence.block_numbers(2) == sequence.block_numbers()[2:]
    cache.discard()
    cache.take_events()
    sequence.computed = 12
    cache.filled(sequence)
    assert cache.take_events() == []
    cache.release(sequence)
    assert serve(cache, tokens(0, 20)) == 0


def test_a_preempted_sequence_finds_its_own_blocks_again_and_no_others() -> None:
    cache = small_cache()
    sequence = begin(cache, tokens(0, 6), salt="s")
    sequence.append(cache, [6, 7, 8])
    cache.release(sequence)
    assert cache.find(sequence, 9) == 2
    assert serve(cache, tokens(0, 9)) == 0
    cache.caching = False
    sequence.reply.append(9)
    assert cache.find(sequence, 10) == 0
