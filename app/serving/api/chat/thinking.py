"""Decides if a model thinks before it replies, like chat templates and vLLM's reasoning parsers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.tokenize import TokenizeChatRequest

NOTHING: Mapping[str, object] = {}
NO_SWITCH = frozenset(("deepseek_r1", "ernie45", "minimax_m2", "step3", "step3p5"))
"""Parsers that take all text up to the end tag as thoughts, whatever the request switches off."""
EITHER = frozenset(("deepseek_v4", "deepseek_v41", "glm45", "glm47", "holo2", "kimi_k2", "ling3"))
"""Parsers that read `thinking` and `enable_thinking`; without both the model thinks."""
OPT_IN = frozenset(("deepseek_v3", "gemma4"))
"""Parsers whose models think only on request."""
TELLS_EMPTY = frozenset(("deepseek_r1", "deepseek_v3", "ernie45", "holo2"))
"""Parsers that also stream a thought for a token without text."""
DEFAULT_EFFORT = {"hy_v3": "no_think", "hy_v4": "high"}
"""Parsers that read the effort alone, each with its default effort."""

Thinking = Literal["no", "first", "all"]
"""No thoughts; thoughts before the reply; or a parser that takes the whole reply as thoughts."""


def template_kwargs(
    request: ChatCompletionRequest | TokenizeChatRequest, defaults: Mapping[str, object] = NOTHING
) -> Mapping[str, object]:
    """Returns the chat template's variables: `defaults`, then the effort's, then the request's own."""
    given, effort = request.chat_template_kwargs or NOTHING, getattr(request, "reasoning_effort", None)
    if effort is None:
        return {**defaults, **given} if defaults else given
    return {**defaults, "enable_thinking": effort != "none", **given, "reasoning_effort": effort}


def thinking(
    request: ChatCompletionRequest, parser: str, defaults: Mapping[str, object] = NOTHING
) -> Thinking:
    """Returns the way of thinking, as the parser of this name separates thoughts from the reply."""
    if not parser:
        return "no"
    kwargs = template_kwargs(request, defaults)
    if parser in NO_SWITCH:
        return "first" if kwargs.get("enable_thinking", kwargs.get("thinking", True)) else "all"
    return "first" if _is_on(parser, kwargs) else "no"


def _is_on(parser: str, kwargs: Mapping[str, object]) -> bool:
    effort = kwargs.get("reasoning_effort")
    if parser in DEFAULT_EFFORT:
        return (effort or DEFAULT_EFFORT[parser]) != "no_think"
    switch, other = kwargs.get("enable_thinking"), kwargs.get("thinking")
    if parser == "kimi_k3" and other is not None:
        return bool(other)
    if parser == "gemma4" or parser not in EITHER | OPT_IN:
        return bool(kwargs.get("enable_thinking", parser != "gemma4"))
    if effort == "none" and parser.startswith("deepseek_v4"):
        return False
    return parser in EITHER if switch is None and other is None else bool(switch) or bool(other)
