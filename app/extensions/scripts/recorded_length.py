"""Compares the token count that a rule reports with the limit of a request.

The text of a recording has other tokens here than at the server that generated it. If the recorded
count is within the limit of a request, the reply was whole for such a request, however many tokens
it has here. `with_recorded_length` is the function to call.
"""

from msgspec.structs import replace

from app.core.api.reply_rules import ScriptedAnswer
from app.core.protocol.common import UsageOverrides


class LimitedUsage(UsageOverrides, frozen=True, kw_only=True):
    """The usage of a rule whose reply has more tokens than the request allows.

    A reply that reaches `max_tokens` is cut, so the rule's count is not that of the reply.
    """

    max_tokens: int

    def override(self, prompt_tokens: int, completion_tokens: int) -> tuple[int, int]:
        """Returns the numbers of prompt tokens and generated tokens to report."""
        prompt_tokens, reported_tokens = super().override(prompt_tokens, completion_tokens)
        if completion_tokens >= self.max_tokens:
            reported_tokens = min(reported_tokens, completion_tokens)
        return prompt_tokens, reported_tokens


def with_recorded_length(
    answer: ScriptedAnswer, *, max_tokens: int, room: int, choices: int = 1
) -> ScriptedAnswer:
    """Returns an answer that `max_tokens` cuts only if the rule's own token count exceeds it.

    Args:
        answer: The decision of a rule.
        max_tokens: Limit of the request for each choice, in tokens.
        room: Tokens of the context that the prompt leaves.
        choices: Choices of the request, whose tokens the rule counts together.
    """
    usage = answer.usage
    if usage is None or usage.completion_tokens is None or answer.reply.passes:
        return answer
    if usage.completion_tokens <= max_tokens * choices:
        return replace(answer, reply=replace(answer.reply, max_tokens=room))
    limited = LimitedUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        max_tokens=max_tokens * choices,
    )
    return replace(answer, usage=limited)
