"""Settings with which the simulated version of vLLM would not start."""

from __future__ import annotations

from collections.abc import Iterator

from config.settings import Settings
from vllm_facts.facts import OPTIONS
from vllm_facts.speculative import drafts_of
from vllm_facts.version import played_versions


def conflicts_of(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields the name of a setting and the rule that it breaks, for each conflict."""
    if not settings.engine.is_real:
        try:
            drafts_of(settings)
        except ValueError as error:
            yield "speculative-config", str(error)
    parser = settings.tools.tool_call_parser
    if parser and not settings.tools.tool_parser_plugin:
        option = OPTIONS["tool-call-parser"].as_of(played_versions(settings.api))
        flaw = option.name_error(parser)
        if flaw is not None:
            yield "tool-call-parser", str(flaw)
