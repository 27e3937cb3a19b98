"""Limits of the memory and the work of one answer."""

from app.core.base.callers import claim_memory
from app.core.protocol.validation import GenerationRequest, ValidatedRequest
from app.core.server.http.errors import bad_request

MAX_ANSWER_BYTES = 64 << 20
"""Most memory, in bytes, of one whole answer in the process."""
UNCOUNTED_BYTES = 1 << 16
"""Answers up to this size claim no memory."""
TOKEN_BYTES = 48
"""Memory of a token, text and id, until its answer is written; 36 bytes were measured."""
ENTRY_BYTES = 80
"""Memory of a log probability in an answer, in bytes; about 75 are JSON."""
MAX_REPEATED = 1 << 20
"""Most token ids and characters of prompts that a stream repeats at its start: about 20 ms."""
MAX_REPEATED_LOGPROBS = 20_000
"""Most log probabilities of prompts that a stream repeats at its start: about 10 ms of work."""


def check_answer_size(accepted: ValidatedRequest[GenerationRequest], prompt_tokens: int) -> None:
    """Claims the memory of a whole answer.

    Raises:
        ApiError: 400 when it may have too many tokens or log probabilities.
        MemoryFullError, MemoryExceededError: as `claim_memory`.
    """
    n = accepted.n
    tokens = n * sum(accepted.max_tokens)
    entries = tokens * accepted.entries_per_token
    entries += n * prompt_tokens * accepted.entries_per_prompt_token
    size = tokens * TOKEN_BYTES + entries * ENTRY_BYTES
    if size > MAX_ANSWER_BYTES:
        raise bad_request(
            f"The response could contain {tokens} tokens and {entries} log probabilities and take "
            f"{size >> 20} MiB, which exceeds the limit of {MAX_ANSWER_BYTES >> 20} MiB. "
            f"Reduce n, max_tokens, or logprobs, or set stream=true."
        )
    if size > UNCOUNTED_BYTES:
        claim_memory(2 * size)  # the answer is copied into its body


def check_repeated(param: str, values: int, entries: int = 0) -> None:
    """Raises ApiError 400 for a stream that repeats too much of its prompts.

    `values` counts token ids and characters, `entries` log probabilities.
    """
    if values > MAX_REPEATED or entries > MAX_REPEATED_LOGPROBS:
        raise bad_request(
            f"A stream can repeat a total of at most {MAX_REPEATED} token IDs and characters from "
            f"its prompts, and at most {MAX_REPEATED_LOGPROBS} log probabilities.",
            param,
        )
