"""Prompts as tokens, and the media in them: images, sounds and films.

An extension reads media and decides how many tokens they take; without it, the placeholders that
the chat template writes are plain text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

from msgspec import Struct

from app.core.protocol.common import ECTransferParams


class MediaTokens(TypedDict):
    """Tokens of the prompt that stand for an item."""

    offset: int
    length: int


class Features(TypedDict):
    """Media of a prompt, by modality."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[MediaTokens]]
    kwargs_data: dict[str, list[str]]


class BuiltPrompt(Struct, frozen=True):
    """A prompt as tokens, and the text that mode `echo` repeats."""

    ids: Sequence[int]
    echo_text: str
    turns: tuple[tuple[str, str], ...] = ()
    """Role and text of each message, if a dataset looks them up."""
    features: Features | None = None


PlaceMedia = Callable[[Sequence[int]], tuple[Sequence[int], Features]]
"""Returns a prompt with the tokens of its media in place of their placeholders. May pause."""


class MediaReader:
    """Reads the media of messages."""

    def read(
        self,
        messages: Sequence[Mapping[str, object]],
        request: Struct,
        *,
        renders_only: bool = False,
    ) -> PlaceMedia | None:
        """Returns what puts the media into the rendered prompt; None without media. May pause.

        With `renders_only`, no reply follows. vLLM has a media cache without metrics for this.

        Raises:
            ApiError: The server does not accept the media.
        """
        raise NotImplementedError

    def forget(self) -> None:
        """Clears the media cache."""

    def encoded(self, hashes: Mapping[str, Sequence[str]]) -> ECTransferParams | None:
        """Returns where encoded items are, on a server that encodes alone; else None."""
        raise NotImplementedError


def placeholders(media: Features | None) -> tuple[tuple[str, int, int], ...]:
    """Returns hash, offset and length of each item."""
    if media is None:
        return ()
    return tuple(
        (name, place["offset"], place["length"])
        for modality, names in media["mm_hashes"].items()
        for name, place in zip(names, media["mm_placeholders"][modality], strict=True)
    )


def tokens_by_modality(media: Features) -> dict[str, int]:
    """Returns the tokens of the prompt that stand for the items of each modality."""
    return {
        modality: sum(place["length"] for place in places)
        for modality, places in media["mm_placeholders"].items()
    }
