"""The SGLang dialect: routes, metrics, KV events and errors as clients of SGLang know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.sglang.settings import SglangSettings

if TYPE_CHECKING:
    from app.core.extensions import ServerParts
    from config import Settings as AllSettings


class SglangDialect(Extension):
    """Adds SGLang's native interface, and adapts the OpenAI routes.

    An instance is a `Dialect`, whose module only servers with the dialect import.
    """

    name = "sglang"
    Settings = SglangSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether the dialect is SGLang's."""
        return settings.section(SglangSettings).dialect == "sglang"

    def __new__(cls, parts: ServerParts) -> SglangDialect:
        """Makes a `Dialect`."""
        from app.extensions.sglang.dialect import Dialect

        return object.__new__(Dialect)
