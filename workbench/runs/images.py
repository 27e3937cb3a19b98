"""Images in the prompts of an offline run, which encoders compute as in a server."""

from __future__ import annotations

from collections.abc import Sequence

from config import ConfigError
from workbench.engine.steps import (
    EncoderBudget,
    EncoderItem,
    EncoderLimits,
    EncoderSeconds,
    Profile,
    SchedulerLimits,
)
from workbench.load.loads import LoadTrace
from workbench.runs.prefix_blocks import OfflineRequest
from workbench.runs.row_values import is_missing, read_tokens

COLUMN = "image_tokens"
SEPARATOR = "+"


def read_images(text: str, input_tokens: int, shared_tokens: int) -> tuple[int, ...]:
    """Returns the tokens of each image of a prompt, as in `384+1564`.

    No two images are equal, so none lies in the first `shared_tokens` tokens, which belong to an
    earlier turn or to a prefix. Raises ValueError with the rule.
    """
    if is_missing(text):
        return ()
    images = tuple(read_tokens(COLUMN, part) for part in text.split(SEPARATOR))
    if sum(images) >= input_tokens - shared_tokens:
        limit = f"input_tokens {input_tokens}"
        if shared_tokens:
            limit += f" without the {shared_tokens} tokens of earlier turns or of the prefix"
        raise ValueError(f"{COLUMN} {text.strip()[:40]!r} must have a sum less than {limit}")
    return images


def check_encoder(load: LoadTrace, profile: Profile) -> None:
    """Raises ConfigError for images in a load if the model has no encoder."""
    if any(load.images) and not profile.cost.per_embedding:
        raise ConfigError(
            f"{load.origin}: {COLUMN} requires a model with an encoder (--device and --model), "
            "or `per_embedding` in the profile"
        )


def encoder_budget(
    profile: Profile, limits: SchedulerLimits, largest_image: int
) -> EncoderBudget[OfflineRequest]:
    """Returns the rule for the images of a step; `largest_image` is in tokens."""
    cost = profile.cost
    size = max(limits.max_num_batched_tokens, largest_image)
    return EncoderBudget(
        EncoderLimits(
            budget=size,
            cache_size=size,
            overlaps_steps=profile.engine.async_scheduling,
        ),
        limits,
        _items_of,
        EncoderSeconds(cost.encoder, cost.per_embedding, cost.per_embedding_pair),
    )


def _items_of(request: OfflineRequest) -> Sequence[EncoderItem]:
    """Returns the images of a prompt, which end before its last token.

    An earlier turn of the conversation does not contain them.
    """
    start = request.prompt_tokens - 1 - sum(request.images)
    items = []
    for index, tokens in enumerate(request.images):
        items.append(EncoderItem(f"{request.number}/{index}", start, tokens))
        start += tokens
    return items
