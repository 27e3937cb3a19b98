"""Decides if a model thinks before it replies, by the variables of its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from app.core.engine.request import PARSERS_WITHOUT_SWITCH
from app.core.protocol.chat import ChatCompletionRequest

if TYPE_CHECKING:
    from app.core.protocol.tokenize import TokenizeChatRequest

TWO_SWITCH_PARSERS = frozenset(
    ["deepseek_v4", "deepseek_v41", "glm45", "glm47", "holo2", "kimi_k2", "ling3"]
)
"""Parsers that read `thinking` and `enable_thinking`; without either, the model thinks."""
OPT_IN_PARSERS = frozenset(["deepseek_v3", "gemma4"])
"""Parsers whose models think only on request."""
EMPTY_THOUGHT_PARSERS = frozenset(["deepseek_r1", "deepseek_v3", "ernie45", "holo2"])
"""Parsers that also stream a thought for a token without text."""
NO_EFFORTS: Mapping[str, str] = {}
DEFAULT_EFFORTS = {"hy_v3": "no_think", "hy_v4": "high"}
"""Parsers that read the effort alone, each with its default effort."""

Thinking = Literal["no", "first", "all"]
"""No thoughts; thoughts before the reply; or a parser that takes the whole reply as thoughts."""


def template_kwargs(
    request: ChatCompletionRequest | TokenizeChatRequest,
    defaults: Mapping[str, object],
    efforts: Mapping[str, str] = NO_EFFORTS,
) -> Mapping[str, object]:
    """Returns the chat template's variables, with the effort that `efforts` has for the request's.

    The variables of the effort override `defaults`, and the request's own override both.
    """
    kwargs = request.chat_template_kwargs or {}
    effort = getattr(request, "reasoning_effort", None)
    if effort is None:
        return {**defaults, **kwargs}
    effort = efforts.get(effort, effort)
    return {**defaults, "enable_thinking": effort != "none", **kwargs, "reasoning_effort": effort}


def thinking(
    request: ChatCompletionRequest,
    parser: str,
    defaults: Mapping[str, object],
    efforts: Mapping[str, str] = NO_EFFORTS,
) -> Thinking:
    """Returns the way of thinking, as the parser of this name separates thoughts from the reply."""
    if not parser:
        return "no"
    kwargs = template_kwargs(request, defaults, efforts)
    if parser in PARSERS_WITHOUT_SWITCH:
        if kwargs.get("enable_thinking", kwargs.get("thinking", True)):
            return "first"
        return "all"
    if _is_on(parser, kwargs):
        return "first"
    return "no"


def _is_on(parser: str, kwargs: Mapping[str, object]) -> bool:
    """Returns whether the model thinks."""
    effort = kwargs.get("reasoning_effort")
    if parser in DEFAULT_EFFORTS:
        return (effort or DEFAULT_EFFORTS[parser]) != "no_think"
    enable_thinking = kwargs.get("enable_thinking")
    thinks = kwargs.get("thinking")
    if parser == "kimi_k3" and thinks is not None:
        return bool(thinks)
    if parser == "gemma4" or parser not in TWO_SWITCH_PARSERS | OPT_IN_PARSERS:
        return bool(kwargs.get("enable_thinking", parser != "gemma4"))
    if effort == "none" and parser.startswith("deepseek_v4"):
        return False
    if enable_thinking is None and thinks is None:
        return parser in TWO_SWITCH_PARSERS
    return bool(enable_thinking) or bool(thinks)
