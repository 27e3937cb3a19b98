"""Rules of settings that are facts of vLLM.

`config` declares settings, and imports nothing of this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from config.declaration import SettingRule, understood_by
from config.settings import Settings
from vllm_facts.version import RULE, playable_version


class VllmSettings(
    Settings, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The settings of the core, with these rules."""

    RULES: ClassVar[Mapping[str, tuple[SettingRule, ...]]] = {
        "vllm-version": (understood_by(playable_version, RULE),)
    }

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Yields each setting with which the simulated version of vLLM would not start."""
        if self.engine.speculative_config or self.tools.tool_call_parser:
            from vllm_facts.setting_conflicts import conflicts_of  # few servers have these settings

            yield from conflicts_of(self)
