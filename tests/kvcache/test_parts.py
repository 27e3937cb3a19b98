"""Prompts that are computed in parts, and those that begin again after a preemption."""

from __future__ import annotations

from tests.kvcache.caches import serve, small_cache, summary, tokens


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
