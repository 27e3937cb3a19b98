"""Lists of the index's settings whose items have a form of their own."""

from __future__ import annotations

from collections.abc import Sequence


def tier_weights(items: Sequence[str]) -> dict[str, float]:
    """Tier -> weight, from items such as `gpu=1.0`. ValueError for another form or a weight below 0."""
    weights: dict[str, float] = {}
    for item in items:
        tier, _, weight = item.partition("=")
        try:
            weights[tier.strip().lower()] = float(weight)
        except ValueError:
            raise ValueError(f"{item!r} is not tier=weight") from None
        if not tier.strip() or not 0 <= float(weight) < float("inf"):
            raise ValueError(f"{item!r} is not a tier and a weight of 0 or more")
    return weights


def tokenizer_sources(items: Sequence[str]) -> dict[str, str]:
    """Model -> where its tokenizer is, from items such as `model=folder`. ValueError for another form."""
    sources: dict[str, str] = {}
    for item in items:
        model, _, source = item.partition("=")
        if not model.strip() or not source.strip():
            raise ValueError(f"{item!r} is not model=source")
        sources[model.strip()] = source.strip()
    return sources
