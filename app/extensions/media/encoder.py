"""The encoder budget of a simulated engine, from the largest item that its model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.extensions.media.limits import DEFAULT_LIMIT, item_limits
from app.extensions.media.reader import model_of, rule_of
from app.extensions.media.rules import ImageRule, RuleError
from app.extensions.media.settings import MediaSettings
from app.extensions.media.sounds import RATE
from app.shared.step_policies.encoder_budget import (
    EncoderBudget,
    EncoderItem,
    EncoderLimits,
    EncoderSeconds,
)
from config.declaration import ConfigError

if TYPE_CHECKING:
    from random import Random

    from app.core.engine.batch import Blocks, SchedulerLimits
    from app.core.engine.profile import Profile, SpeculationRates
    from app.core.engine.scheduling_policy import MakePolicies, SchedulingPolicy
    from app.core.engine.stepped_sequence import SteppedSequence
    from config import Settings

SIDE = 4_000
"""Pixels of the sides of images that are tried: no model makes more tokens of larger ones."""
MAX_RATIO = 12
"""Maximum ratio of these sides. Models with tiles have the most tokens at one of the ratios."""
SOUND_S = 30
"""Longest sound that the encoders of sounds read at a time, in seconds."""


def encoder_limits(settings: Settings) -> EncoderLimits | None:
    """Returns the encoder's limits; None for a model that reads no media, or without rules.

    Raises:
        ConfigError: The largest item does not fit into a step.
    """
    section = settings.section(MediaSettings)
    largest = largest_item(settings)
    if not largest:
        return None
    step_tokens = settings.steps.max_num_batched_tokens
    if section.disable_chunked_mm_input and largest > step_tokens:
        raise ConfigError(
            f"setting disable-chunked-mm-input: the largest item has {largest} tokens, which is "
            f"more than max-num-batched-tokens ({step_tokens})"
        )
    return EncoderLimits(
        budget=max(step_tokens, largest),
        cache_size=max(step_tokens, largest),
        overlaps_steps=settings.steps.async_scheduling,
        disable_chunked_mm_input=section.disable_chunked_mm_input,
    )


def largest_item(settings: Settings) -> int:
    """Returns the embeddings of the largest image or sound that the model reads; 0 for none."""
    model = model_of(settings)
    section = settings.section(MediaSettings)
    if model.facts is None or not model.reads_media:
        return 0
    limits = item_limits(section.limit_mm_per_prompt or "{}")
    sizes = [0]
    rule = rule_of(model.facts, section)
    if rule is not None and limits.get("image", DEFAULT_LIMIT):
        sizes.append(_largest_image(rule))
    if model.facts.sound is not None and limits.get("audio", DEFAULT_LIMIT):
        sizes.append(model.facts.sound.tokens(SOUND_S * RATE).embeddings)
    return max(sizes)


def make_policies(encoder: EncoderLimits, seconds: EncoderSeconds) -> MakePolicies:
    """Returns what makes the policy of an engine."""

    def policies(
        limits: SchedulerLimits,
        blocks: Blocks[Any],
        rates: SpeculationRates | None,
        rng: Random,
    ) -> list[SchedulingPolicy[Any]]:
        return [EncoderBudget(encoder, limits, _items_of, seconds)]

    return policies


def encoder_seconds(profile: Profile) -> EncoderSeconds:
    """Returns the costs of the encoder in a profile."""
    cost = profile.cost
    return EncoderSeconds(cost.encoder, cost.per_embedding, cost.per_embedding_pair)


def _items_of(sequence: SteppedSequence) -> list[EncoderItem]:
    return [EncoderItem(*place) for place in sequence.request.media]


def _largest_image(rule: ImageRule) -> int:
    largest = 0
    for ratio in range(1, MAX_RATIO + 1):
        for width, height in ((SIDE, SIDE * ratio), (SIDE * ratio, SIDE)):
            try:
                largest = max(largest, rule.tokens(width, height).embeddings)
            except RuleError:
                continue
    return largest
