"""What a sequence finds in the cache, takes of it and leaves in it."""

from random import Random

import gevent

from app.core.engine.kvcache.events import BlockStored
from app.core.engine.kvcache.residency import Residency
from app.shared.virtual_clock import VirtualClock
from tests.core.kvcache.caches import (
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


def test_block_events_contain_the_salt_the_adapter_and_the_hashes() -> None:
    cache = small_cache()
    serve(cache, [1, 2], reply=[3, 4, 5], salt="s")  # a prompt of less than a block
    serve(cache, tokens(0, 4), adapter=ALICE)
    salted, adapted = cache.take_events()
    assert isinstance(salted, BlockStored) and isinstance(adapted, BlockStored)
    assert (salted.parent_block_hash, salted.extra_keys) == (None, [["s"]])
    assert (adapted.lora_id, adapted.lora_name, adapted.extra_keys) == (7, "Alice", [["Alice"]])
    assert serve(cache, tokens(1, 5), salt="s") == 4
    whole = small_cache(event_hashes="bytes")
    serve(whole, tokens(0, 8))
    [event] = whole.take_events()
    assert isinstance(event, BlockStored)
    assert [len(hash_) for hash_ in event.block_hashes if isinstance(hash_, bytes)] == [32, 32]
    unwanted = small_cache(2, event_hashes=None)
    assert [
        serve(unwanted, tokens(0, 8)),
        serve(unwanted, tokens(0, 8)),
        serve(unwanted, tokens(50, 8)),
    ]
    assert unwanted.reset() and unwanted.take_events() == []


def test_same_prompt_is_stored_separately_for_each_adapter() -> None:
    cache = small_cache()
    assert [serve(cache, tokens(0, 8), adapter=adapter) for adapter in (ALICE, BOB)] == [0, 0]
    first, second = cache.take_events()
    assert isinstance(first, BlockStored) and isinstance(second, BlockStored)
    assert (first.lora_name, second.lora_name) == ("Alice", "Bob")
    assert len({*first.block_hashes, *second.block_hashes}) == 4


def test_other_greenlets_run_while_a_long_prompt_is_hashed() -> None:
    cache = small_cache(1000)
    turns = []
    other = gevent.spawn(turns.append, 1)
    prompt = gevent.spawn(lambda: (cache.make_prompt(tokens(0, 1000)), bool(turns))).get()
    other.join()
    assert prompt[1] and len(prompt[0].hashes or ()) == 250


def test_chunked_prompt_caches_only_full_blocks() -> None:
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
    cache.append(sequence, 2)
    assert cache.take_events() == []
    cache.append(sequence, 1)
    assert summary(cache.take_events()) == [12]
    check(cache)
    cache.release(sequence)
    assert serve(cache, tokens(0, 17)) == 16


def test_chunked_prefill_starts_after_the_cached_blocks_of_the_prompt() -> None:
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


class Series(list[float]):
    """Keeps the values that a histogram would count."""

    observe = list.append
    observe_all = list.extend


class Observed:
    """The families of an engine, as far as blocks need them."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}

    def histogram(self, name: str) -> Series:
        return self.series.setdefault(name, Series())


def test_residency_metrics_record_the_gaps_between_recent_uses_of_a_block() -> None:
    clock = VirtualClock(100.0)
    observed = Observed()
    cache = small_cache(2)
    cache.pool.observers.append(Residency(observed, 1.0, Random(0), clock.now))
    serve(cache, tokens(0, 4))
    for pause in (1, 2, 3, 4, 5):
        clock.advance(pause)
        serve(cache, tokens(0, 5))
    clock.advance(6)
    for series in observed.series.values():
        series.clear()
    begin(cache, tokens(50, 8))
    assert {name: sorted(series) for name, series in observed.series.items()} == {
        "kv_block_lifetime_seconds": [6, 21],
        "kv_block_idle_before_evict_seconds": [6, 6],
        "kv_block_reuse_gap_seconds": [3, 4, 5],
    }
