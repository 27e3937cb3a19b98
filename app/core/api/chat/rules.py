"""Rules of the server for the chat templates of requests."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from app.core.versions.chain import simulated_version
from config.sections.api import ApiSettings, effort_map, json_object


class ChatRules(Struct, frozen=True):
    """Permissions of requests to change the chat template, and its default variables."""

    trusts_templates: bool = False
    template_kwargs: Mapping[str, object] = {}
    efforts: Mapping[str, str] = {}
    """Reasoning effort of requests -> effort for the chat template."""
    hides_unused_tools: bool = False
    strict_parsers: frozenset[str] = frozenset()
    """Reasoning parsers that find thoughts only between their two marks."""
    streams_hidden_thoughts: bool = False
    """Streams have thoughts also without `include_reasoning`."""
    keeps_developers: bool = False
    """The role `developer` stays, also for templates that do not name it; by the version."""

    @classmethod
    def of(cls, api: ApiSettings) -> ChatRules:
        """Returns the rules of the settings."""
        rules = simulated_version(api).rules(cls)
        return replace(
            rules,
            trusts_templates=rules.trusts_templates or api.trust_request_chat_template,
            template_kwargs=json_object(api.default_chat_template_kwargs or "{}"),
            efforts=effort_map(api.reasoning_effort_map or "{}"),
            hides_unused_tools=api.exclude_tools_when_tool_choice_none,
        )
