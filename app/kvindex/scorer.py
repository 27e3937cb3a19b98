"""Scores holders for a prompt: the longest run of blocks from the start, counted by tier."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from app.kvindex.backend import (
    CPU,
    GPU,
    Copies,
    EngineGroup,
    Holders,
    IndexedEngine,
    anywhere,
    bits,
)

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
    """Prefix of a holder:

    `matched` blocks without a gap; `lower` counts blocks outside the best tier.
    """

    matched: int
    lower: dict[int, int]


def score_prefixes(
    found: Sequence[Copies],
    blocks: int,
    candidates: int,
    holders: Holders,
    tiers: Sequence[str],
    weights: Mapping[str, float],
) -> list[PodScore]:
    """Scores the engines that have the first block, best first.

    `found` has the masks of the prompt's first blocks; `blocks` is the prompt's number of full
    blocks; `candidates` are the holders to score. With several scored groups, an engine's shortest
    prefix counts.
    """
    values, seats = [weights.get(tier, DEFAULT_WEIGHT) for tier in tiers], holders.seats()
    order = sorted(range(len(tiers)), key=lambda at: -values[at])
    prefixes, best = longest_prefixes(found, candidates, order), order[0]
    worths: dict[int, tuple[float, float, dict[str, int]]] = {}
    scores = []
    for source, prefix in _engines(prefixes, seats, holders):
        matched, worth = prefix.matched, worths.get(id(prefix))
        if worth is None:  # engines with equal prefixes share one object
            counts = {best: matched}
            if prefix.lower:
                counts = {best: matched - sum(prefix.lower.values()), **prefix.lower}
            worth = worths[id(prefix)] = (
                sum([values[tier] * count for tier, count in counts.items()]),
                matched / blocks,
                {tiers[tier]: count for tier, count in counts.items() if count},
            )
        score, ratio, by_tier = worth
        scores.append(PodScore(source.pod, score, matched, ratio, by_tier, source.rank))
    scores.sort(key=lambda score: -score.score)
    return scores


def _engines(
    prefixes: Mapping[int, Prefix], seats: Sequence[EngineGroup | None], holders: Holders
) -> list[tuple[IndexedEngine, Prefix]]:
    if holders.one_group_each:
        return [
            (holder.source, prefix)
            for number, prefix in prefixes.items()
            if (holder := seats[number]) is not None
        ]
    engines: dict[IndexedEngine, Prefix] = {}
    groups: dict[IndexedEngine, int] = {}
    for number, prefix in prefixes.items():
        holder = seats[number]
        if holder is None:
            continue
        source = holder.source
        groups[source] = groups.get(source, 0) + 1
        least = engines.get(source)
        if least is None or prefix.matched < least.matched:
            engines[source] = prefix
    # A hit needs every group, so an engine without the first block in one group scores nothing.
    scored = {
        source: sum(
            1 for number in holders.groups(source).values() if (at := seats[number]) and at.scored
        )
        for source in engines
    }
    return [
        (source, prefix) for source, prefix in engines.items() if groups[source] == scored[source]
    ]


def longest_prefixes(
    found: Sequence[Copies], candidates: int, order: Sequence[int]
) -> dict[int, Prefix]:
    """Returns number of a group -> prefix, for the candidates that have the first block.

    `order` lists the tiers, best first. Neighbouring blocks mostly share one tuple, so the cost is
    per run of equal blocks, and per holder once at the end of its prefix.
    """
    active, ended = candidates, []
    lower: dict[int, dict[int, int]] = {}
    before: Copies | None = None
    below: list[tuple[int, int]] = []
    begun = 0
    for at, copies in enumerate(found):
        if copies is before:
            continue
        _count(lower, below, at - begun)
        begun, before = at, copies
        present = anywhere(copies)
        still = active & present
        if still != active:
            ended.append((active ^ still, at))
            active = still
            if not active:
                break
        below = _below(copies, active, order) if len(copies) > 1 or order[0] else []
    else:
        _count(lower, below, len(found) - begun)
    ended.append((active, len(found)))
    prefixes: dict[int, Prefix] = {}
    for mask, matched in ended:
        shared = Prefix(matched, {})
        for number in bits(mask) if matched else ():
            prefixes[number] = Prefix(matched, lower[number]) if number in lower else shared
    return prefixes


def _below(copies: Copies, active: int, order: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (tier, mask) of the active holders whose best copy is below the best tier."""
    below = []
    for tier in order:
        here = active & copies[tier] if tier < len(copies) else 0
        if here and tier != order[0]:
            below.append((tier, here))
        active &= ~here
    return below


def _count(lower: dict[int, dict[int, int]], below: Sequence[tuple[int, int]], blocks: int) -> None:
    for tier, mask in below:
        for number in bits(mask):
            tiers = lower.setdefault(number, {})
            tiers[tier] = tiers.get(tier, 0) + blocks
