"""The check of the hooks of plugins, before workers start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.application import tokenizer_of
from app.core.assembly.server import build
from app.core.built_in import enabled_extensions
from config.validation import LiveSettings

if TYPE_CHECKING:
    from config import Settings


def check_hooks(settings: Settings) -> None:
    """Calls all hooks once, for a server that is not used.

    Raises:
        ConfigError: A hook is invalid.
    """
    live = LiveSettings(settings)
    build(live, tokenizer_of(settings), enabled_extensions(settings), rank=0)
