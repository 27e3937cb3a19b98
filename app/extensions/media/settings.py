"""Settings of images, sounds and films in messages."""

from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import (
    SIMULATED,
    Json,
    NonEmptyItems,
    PositiveDuration,
    Section,
    understood_by,
)
from config.sections.api import json_object

Sides = Annotated[
    str,
    Meta(
        pattern="^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$",
        description="must be a width and a height in pixels, such as 1024x768",
    ),
]


def item_limits(text: str) -> object:
    """Parses the limits; see `app.extensions.media.limits`. Raises ValueError."""
    from app.extensions.media import limits  # few servers have limits

    return limits.item_limits(text)


class MediaSettings(Section, frozen=True, kw_only=True):
    """Images, sounds and films in messages."""

    limit_mm_per_prompt: Annotated[
        Json | None, SIMULATED, understood_by(item_limits, "must be a JSON object of limits")
    ] = None
    """JSON object, such as {"image": 2, "video": {"count": 1, "num_frames": 32}}, with the maximum
    number of items in a prompt by modality. If a modality is missing, its limit is 999. Sizes have
    no effect."""
    mm_processor_kwargs: Annotated[
        Json | None, SIMULATED, understood_by(json_object, "must be a JSON object")
    ] = None
    """JSON object, such as {"max_pixels": 1003520}, with arguments of the model's media processor.
    The arguments that determine the number of tokens of an image are used. The other arguments have
    no effect."""
    disable_chunked_mm_input: Annotated[bool, SIMULATED] = False
    """With steps timing, let an item of a prompt wait for a later step if a step has no room for
    all its tokens."""
    allowed_media_domains: Annotated[NonEmptyItems, SIMULATED] = ()
    """Hosts from which requests can load media. If this setting is empty, all hosts are allowed.
    Media are never loaded."""
    allowed_local_media_path: Annotated[str, SIMULATED] = ""
    """Folder from which requests can load media. If this setting is empty, URLs of files are
    rejected. Files are never loaded."""
    mm_hasher_algorithm: Annotated[Literal["blake3", "sha256", "sha512"], SIMULATED] = "blake3"
    """Algorithm of the hashes of media in KV events, which equal the hashes of vLLM."""
    media_duration: Annotated[PositiveDuration, SIMULATED] = 10.0
    """Duration of a sound or a video that is not in a data URL, and of a video in another format
    than MP4, WebM, Matroska, or AVI."""
    media_size: Annotated[Sides, SIMULATED] = "1024x768"
    """Width and height in pixels of an image or a video whose URL is not a data URL, because media
    are never loaded. A fragment of a URL, such as https://example.com/cat.png#640x480, takes
    precedence."""
