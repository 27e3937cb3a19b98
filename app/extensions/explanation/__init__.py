"""Explanations of latencies: what delayed a request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.extensions.explanation.delays import DelayLog


class Explanations(Extension):
    """Records delays for extensions that explain latencies, such as the console."""

    name = "explanation"

    @cached_property
    def delays(self) -> DelayLog:
        """The log of delays of sequences. The first use attaches it to the simulated engine."""
        from app.extensions.explanation.delays import DelayLog  # few servers explain latencies

        return DelayLog().attach(self.parts.engine)

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the log of delays, if it is in use."""
        if "delays" not in vars(self):
            return {}
        return {"delay log": self.delays}
