"""Scores holders for a prompt: the longest run of blocks from the start, counted by tier."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from msgspec import Struct

from app.extensions.kv_index.backend import CPU, GPU, Lookup
from app.extensions.kv_index.copies import Copies, set_bits, union
from app.extensions.kv_index.holders import EngineGroup, Holders, IndexedEngine, Window
from app.extensions.kv_index.windows import longest_hit, runs_of_holders

DEFAULT_WEIGHTS: Mapping[str, float] = {GPU: 1.0, CPU: 0.8}
"""Tier -> weight of a block (llm-d's defaults)."""
DEFAULT_WEIGHT = 0.5
"""Weight of a block in any other tier."""


class PodScore(Struct, gc=False, frozen=True):
    """Score of an engine for a prompt.

    `matched` counts the engine's blocks from the first block up to a gap; `match_ratio` is their
    share of the prompt's full blocks. `tiers` counts them by the best tier of each block; read
    only, as engines share the dictionary. `score` is the sum of the weights of these tiers.
    """

    pod: str
    score: float
    matched: int
    match_ratio: float
    tiers: dict[str, int]
    rank: int


class Prefix(Struct, gc=False):
    """Prefix of a prompt that a holder has.

    `matched` counts blocks without a gap, `lower_tiers` those outside the best tier, by tier.
    """

    matched: int
    lower_tiers: dict[int, int]


class PrefixScore(Struct, gc=False, frozen=True):
    """Score of a prefix; see `PodScore`."""

    score: float
    match_ratio: float
    tiers: dict[str, int]


def score_prefixes(
    lookup: Lookup, *, blocks: int, candidates: int, weights: Mapping[str, float]
) -> list[PodScore]:
    """Scores the engines that have the first block, best first.

    `blocks` is the prompt's number of full blocks; `candidates` is the mask of the holders to
    score. With several scored groups, an engine's shortest prefix counts. Groups with a window
    shorten the prefix to the longest one that they can continue.
    """
    copies, holders, tiers = lookup
    tier_weights = [weights.get(tier, DEFAULT_WEIGHT) for tier in tiers]
    snapshot = holders.snapshot()
    tier_order = sorted(range(len(tiers)), key=tier_weights.__getitem__, reverse=True)
    best_tier = tier_order[0]
    prefixes = longest_prefixes(copies, candidates, tier_order)
    prefix_scores: dict[int, PrefixScore] = {}
    scores = []
    for source, prefix in _engine_prefixes(prefixes, snapshot, lookup, tier_order):
        matched = prefix.matched
        prefix_score = prefix_scores.get(id(prefix))
        if prefix_score is None:  # engines with equal prefixes share one object
            counts = {best_tier: matched}
            if prefix.lower_tiers:
                lower_count = sum(prefix.lower_tiers.values())
                counts = {best_tier: matched - lower_count, **prefix.lower_tiers}
            prefix_score = prefix_scores[id(prefix)] = PrefixScore(
                score=sum([tier_weights[tier] * count for tier, count in counts.items()]),
                match_ratio=matched / blocks,
                tiers={tiers[tier]: count for tier, count in counts.items() if count},
            )
        scores.append(
            PodScore(
                pod=source.pod,
                score=prefix_score.score,
                matched=matched,
                match_ratio=prefix_score.match_ratio,
                tiers=prefix_score.tiers,
                rank=source.rank,
            )
        )
    scores.sort(key=attrgetter("score"), reverse=True)
    return scores


def longest_prefixes(
    prompt_copies: Sequence[Copies], candidates: int, tier_order: Sequence[int]
) -> dict[int, Prefix]:
    """Returns holder number -> prefix, for the candidates that have the first block.

    `prompt_copies` has the copies of the prompt's first blocks. `tier_order` lists the tiers, best
    first. Neighboring blocks usually share one tuple, so the cost is per run of equal blocks, and
    per holder once at the end of its prefix.
    """
    active = candidates
    ended: list[tuple[int, int]] = []  # masks of holders, and the length of their prefixes
    lower_tiers: dict[int, dict[int, int]] = {}
    previous: Copies | None = None
    lower_masks: list[tuple[int, int]] = []
    run_start = 0
    for position, copies in enumerate(prompt_copies):
        if copies is previous:
            continue
        _count_lower(lower_tiers, lower_masks, position - run_start)
        run_start = position
        previous = copies
        remaining = active & union(copies)
        if remaining != active:
            ended.append((active ^ remaining, position))
            active = remaining
            if not active:
                break
        lower_masks = []
        if len(copies) > 1 or tier_order[0]:
            lower_masks = _lower_masks(copies, active, tier_order)
    else:
        _count_lower(lower_tiers, lower_masks, len(prompt_copies) - run_start)
    ended.append((active, len(prompt_copies)))
    prefixes: dict[int, Prefix] = {}
    for mask, matched in ended:
        if not matched:
            continue
        shared = Prefix(matched, {})
        for number in set_bits(mask):
            counts = lower_tiers.get(number)
            prefixes[number] = shared if counts is None else Prefix(matched, counts)
    return prefixes


def _engine_prefixes(
    prefixes: Mapping[int, Prefix],
    snapshot: Sequence[EngineGroup | None],
    lookup: Lookup,
    tier_order: Sequence[int],
) -> list[tuple[IndexedEngine, Prefix]]:
    """Returns the prefix of each engine: the shortest of its groups, within their windows."""
    holders = lookup.holders
    if holders.has_single_groups:
        return [
            (holder.source, prefix)
            for number, prefix in prefixes.items()
            if (holder := snapshot[number]) is not None
        ]
    engines: dict[IndexedEngine, Prefix] = {}
    group_counts: dict[IndexedEngine, int] = {}
    for number, prefix in prefixes.items():
        holder = snapshot[number]
        if holder is None:
            continue
        source = holder.source
        group_counts[source] = group_counts.get(source, 0) + 1
        shortest = engines.get(source)
        if shortest is None or prefix.matched < shortest.matched:
            engines[source] = prefix
    # A hit needs every group, so an engine without the first block in one group scores nothing.
    complete = [
        (source, prefix)
        for source, prefix in engines.items()
        if group_counts[source] == _count_scored(source, snapshot, holders)
    ]
    return _within_windows(complete, lookup, tier_order)


def _within_windows(
    engines: Sequence[tuple[IndexedEngine, Prefix]], lookup: Lookup, tier_order: Sequence[int]
) -> list[tuple[IndexedEngine, Prefix]]:
    """Shortens the prefixes of engines that have groups with windows."""
    copies, holders, _ = lookup
    windows: dict[IndexedEngine, dict[int, Window]] = {}
    mask = 0
    for source, _ in engines:
        for number in holders.groups(source).values():
            holder = holders[number]
            if holder is not None and holder.window is not None:
                windows.setdefault(source, {})[number] = holder.window
                mask |= 1 << number
    runs = runs_of_holders(copies, mask)
    shortened: list[tuple[IndexedEngine, Prefix]] = []
    for source, prefix in engines:
        groups = [(window, runs[number]) for number, window in windows.get(source, {}).items()]
        matched = longest_hit(prefix.matched, groups)
        if matched == prefix.matched:
            shortened.append((source, prefix))
        elif matched:
            tiers = _lower_tiers(source, matched, lookup, tier_order) if prefix.lower_tiers else {}
            shortened.append((source, Prefix(matched, tiers)))
    return shortened


def _lower_tiers(
    source: IndexedEngine, matched: int, lookup: Lookup, tier_order: Sequence[int]
) -> dict[int, int]:
    """Counts the engine's first `matched` blocks outside the best tier, by tier."""
    copies, holders, _ = lookup
    for number in holders.groups(source).values():
        holder = holders[number]
        if holder is not None and holder.scored:
            return longest_prefixes(copies[:matched], 1 << number, tier_order)[number].lower_tiers
    return {}


def _count_scored(
    source: IndexedEngine, snapshot: Sequence[EngineGroup | None], holders: Holders
) -> int:
    """Counts the scored groups of an engine."""
    groups = [snapshot[number] for number in holders.groups(source).values()]
    return sum(1 for group in groups if group is not None and group.scored)


def _lower_masks(copies: Copies, active: int, tier_order: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (tier, mask) of the active holders whose best copy is below the best tier."""
    lower_masks = []
    for tier in tier_order:
        if tier >= len(copies):
            continue
        mask = active & copies[tier]
        if mask and tier != tier_order[0]:
            lower_masks.append((tier, mask))
        active &= ~mask
    return lower_masks


def _count_lower(
    lower_tiers: dict[int, dict[int, int]], lower_masks: Sequence[tuple[int, int]], blocks: int
) -> None:
    for tier, mask in lower_masks:
        for number in set_bits(mask):
            counts = lower_tiers.setdefault(number, {})
            counts[tier] = counts.get(tier, 0) + blocks
