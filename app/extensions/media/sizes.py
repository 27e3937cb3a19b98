"""Reports the sizes of media that are not loaded: those of their URLs, or the default ones."""

from __future__ import annotations

from msgspec import Struct

from app.core.server.http.context import RequestContext, current_request
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware
from app.extensions.media.sounds import RATE
from app.extensions.media.tracks import Film

HEADER = "X-Understudy-Media"
MAX_SIZES = 32
"""Sizes in a header; those of further media are left out."""


class UsedSizes(Struct, frozen=True):
    """Sizes of media in the current request that were not loaded, in their order."""

    texts: list[str]


def note_size(modality: str, extent: tuple[int, int] | Film | int) -> None:
    """Notes the size of an item that the current request has in a URL."""
    context = current_request.get()
    if context is None:
        return
    sizes = context.kept(UsedSizes)
    if sizes is None:
        sizes = UsedSizes([])
        context.keep(sizes)
    if len(sizes.texts) < MAX_SIZES:
        sizes.texts.append(f"{modality} {_text_of(extent)}")


def _text_of(extent: tuple[int, int] | Film | int) -> str:
    if isinstance(extent, int):
        return f"{extent / RATE:g}s"
    if isinstance(extent, Film):
        return f"{extent.width}x{extent.height} {extent.frames / extent.fps:g}s"
    width, height = extent
    return f"{width}x{height}"


class SizeHeader(Middleware):
    """Adds the sizes of media that were not loaded to answers."""

    def end(self, context: RequestContext, response: Response) -> None:
        """Adds the header."""
        sizes = context.kept(UsedSizes)
        if sizes is not None:
            response.headers[HEADER] = ", ".join(sizes.texts)
