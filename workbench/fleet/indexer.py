"""Client of an indexer, which scores prompts by the blocks that pods have cached."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from app.extensions.plugins.policies import Incoming
from app.shared.http_client import exchange
from config.untrusted import UntrustedDataError, decode_untrusted
from workbench.load.policies import IndexerError

CHAT = "/v1/chat/completions"
TOKEN_FIELDS = ("model", "cache_salt")
TEXT_FIELDS = (*TOKEN_FIELDS, "add_special_tokens")
CHAT_FIELDS = (
    *TEXT_FIELDS,
    "messages",
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
)
"""Request fields that determine the prompt's tokens and the keys of its blocks."""


class _PodScore(Struct):
    score: float


class _TokenScores(Struct):
    scores: dict[str, _PodScore] | None = None


class Indexer(Struct, frozen=True):
    """Client of an indexer. `timeout_s` limits how long routing waits for scores."""

    address: str
    timeout_s: float = 2.0

    def scores(self, incoming: Incoming) -> Mapping[str, float]:
        """Returns the cached blocks of the prompt by pod; nothing for a request without a prompt.

        Raises:
            IndexerError: The indexer did not answer with scores.
        """
        score_request = _score_request(incoming)
        if score_request is None:
            return {}
        path, body = score_request
        try:
            status, answer = exchange(
                self.address, "POST", path, msgspec.json.encode(body), timeout_s=self.timeout_s
            )
        except OSError as error:
            raise IndexerError(f"{path} did not respond: {error}") from error
        if status != 200:
            raise IndexerError(f"{path} returned status {status}")
        try:
            if path == "/score_tokens":
                pod_scores = decode_untrusted(answer, type=_TokenScores).scores or {}
                return {pod: pod_score.score for pod, pod_score in pod_scores.items()}
            return decode_untrusted(answer, type=dict[str, float] | None) or {}
        except UntrustedDataError as error:
            raise IndexerError(f"{path}: the response contains no scores: {error}") from error


def _score_request(incoming: Incoming) -> tuple[str, dict[str, object]] | None:
    """Returns path and body of the request for scores; None without a prompt to score."""
    try:
        body = decode_untrusted(incoming.body, type=dict[str, object])
    except UntrustedDataError:
        return None
    if incoming.path == CHAT:
        # Explicit, as not every indexer defaults to true like vLLM.
        chat = {"add_generation_prompt": body.get("add_generation_prompt", True)}
        return "/score_chat_completions", chat | _select(CHAT_FIELDS, body)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # a batch is routed by its first prompt
    if isinstance(prompt, str) and prompt:
        return "/score_completions", {"prompt": prompt, **_select(TEXT_FIELDS, body)}
    if isinstance(prompt, list) and prompt:
        return "/score_tokens", {"tokens": prompt, **_select(TOKEN_FIELDS, body)}
    return None


def _select(names: Sequence[str], body: Mapping[str, object]) -> dict[str, object]:
    return {name: body[name] for name in names if name in body}
