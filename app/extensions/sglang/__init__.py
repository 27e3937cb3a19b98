"""The SGLang dialect: routes, metrics, KV events and errors as clients of SGLang know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.sglang.settings import SglangSettings

if TYPE_CHECKING:
    from app.core.extensions import ServerParts
    from config import Settings as AllSettings


class SglangDialect(Extension):
    """Decides about the dialect, whose parts only servers that have it import.

    Calling the class returns the extension with the parts.
    """

    name = "sglang"
    Settings = SglangSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether the dialect is SGLang's."""
        return settings.section(SglangSettings).dialect == "sglang"

    def __new__(cls, parts: ServerParts) -> Extension:  # type: ignore[misc]
        """Returns a `Dialect`."""
        from app.extensions.sglang.dialect import Dialect

        return Dialect(parts)
