"""One budget for the caches whose contents can be computed again."""

from collections.abc import Mapping
from functools import partial
from itertools import count

from app.core.base import Bounded, Recomputable
from app.core.base.cache_budget import IDLE_CHECKS, IDLE_CPU_S, KEPT_BYTES, CacheBudget
from app.core.base.caches import ComputedMemo, LimitedDict, Memo
from app.core.settings import load
from app.core.text.memo import PromptMemo
from tests.application import app_of


class CachesOf:
    """A source of caches."""

    def __init__(self, caches: Mapping[str, Bounded]) -> None:
        self._caches = caches

    def __call__(self) -> Mapping[str, Bounded]:
        return self._caches


def one_id(key: bytes) -> list[int]:
    return [1]


def test_limits_are_lowered_in_proportion_to_fit_the_budget() -> None:
    words: LimitedDict[str, int] = LimitedDict(3_000)
    hashes: ComputedMemo[str, int] = ComputedMemo(1_000)
    data: Memo[str, int] = Memo(9_000)
    caches: dict[str, Bounded] = {"words": words, "data": data}
    budget = CacheBudget(2_000, [CachesOf(caches)])
    budget.enforce()
    assert (words.limit_bytes, data.limit_bytes) == (2_000, 9_000)
    caches["hashes"] = hashes
    budget.enforce()
    assert (words.limit_bytes, hashes.limit_bytes, data.limit_bytes) == (1_500, 500, 9_000)
    CacheBudget(4_000, [CachesOf(caches)]).enforce()
    assert (words.limit_bytes, hashes.limit_bytes) == (3_000, 1_000)


def test_full_caches_shrink_to_a_lowered_limit() -> None:
    words: LimitedDict[int, int] = LimitedDict(10_000)
    hashes: ComputedMemo[int, int] = ComputedMemo(10_000)
    prompts = PromptMemo(one_id, 10_000)
    caches: Mapping[str, Recomputable] = {"words": words, "hashes": hashes, "prompts": prompts}
    for lowered in (False, True):
        if lowered:
            CacheBudget(3_000, [CachesOf(caches)]).enforce()
        for number in range(300):
            words.add(number, number, 100)
            hashes.put(number, number, 100)
            for _ in range(2):
                prompts.ids(b"%d" % number)
    assert sum(cache.size_bytes for cache in caches.values()) <= 3_000


def test_large_caches_of_an_idle_worker_shrink() -> None:
    words: LimitedDict[int, int] = LimitedDict(4 * KEPT_BYTES)
    hashes: ComputedMemo[int, int] = ComputedMemo(8 * KEPT_BYTES)
    prompts: LimitedDict[int, int] = LimitedDict(4 * KEPT_BYTES)
    data: Memo[int, int] = Memo(8 * KEPT_BYTES)
    caches: dict[str, Bounded] = {"words": words, "hashes": hashes, "data": data}
    cpu_s = partial(next, count(IDLE_CPU_S, IDLE_CPU_S / 2))
    budget = CacheBudget(1 << 30, [CachesOf({**caches, "prompts": prompts})], cpu_s)
    for number in range(3):
        words.add(number, number, KEPT_BYTES // 2)
        hashes.put(number, number, KEPT_BYTES)
        data.put(number, number, KEPT_BYTES)
    prompts.add(0, 0, KEPT_BYTES)
    data_bytes = data.size_bytes
    lengths = []
    for _ in range(IDLE_CHECKS + 2):
        budget.enforce()
        lengths.append((len(words), len(hashes), len(prompts)))
    # The first half of a memo has the entries that were used lately.
    assert lengths == [*[(3, 3, 1)] * IDLE_CHECKS, (0, 3, 1), (0, 0, 1)]
    assert data.size_bytes == data_bytes


def test_cache_of_a_busy_worker_keeps_its_entries() -> None:
    tools: LimitedDict[int, int] = LimitedDict(4 * KEPT_BYTES)
    cpu_s = partial(next, count(1, 2 * IDLE_CPU_S))
    budget = CacheBudget(1 << 30, [CachesOf({"tools": tools})], cpu_s)
    tools.add(1, 1, 2 * KEPT_BYTES)
    for _ in range(2 * IDLE_CHECKS):
        budget.enforce()
    assert len(tools) == 1


def test_caches_of_a_server_have_their_full_limits_within_the_default_budget() -> None:
    app = app_of("--enable-kvcache")
    caches = [
        cache
        for source in app.caches
        for cache in source().values()
        if isinstance(cache, Recomputable)
    ]
    assert len(caches) >= 5
    total_bytes = sum(cache.full_limit_bytes for cache in caches)
    assert total_bytes <= load((), {}).server.cache_memory
