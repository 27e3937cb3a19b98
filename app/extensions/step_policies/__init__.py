"""Rules of vLLM's scheduler beyond the plain case, such as speculative decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from app.core.engine.scheduling_policy import MakePolicies
    from config import Settings as AllSettings


class StepPolicies(Extension):
    """Adds the policies of `app.shared.step_policies` to simulated engines with shared steps."""

    name = "step_policies"

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns True if sequences share steps."""
        return settings.steps.shared

    def step_policies(self) -> MakePolicies:
        """Returns what chooses the policies of an engine."""
        from app.shared.step_policies.choice import simulated_policies

        return simulated_policies
