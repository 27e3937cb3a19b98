"""The last rules: a request against the model that serves it (vllm-api.md section 4).

vLLM applies them when the engine takes the request. A stream has answered 200 by then and carries the error
as an event; any other answer gets its status. All of them raise `ApiError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from app.http.errors import bad_request
from app.protocol.options import StructuredOutputs

MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_SCHEMA_DEPTH = 64
MAX_NAMED = 5
"""Wrong token ids that an error names."""


def maximum_context(max_model_len: int) -> str:
    """The words by which clients, litellm for one, know that a prompt was too long, and try another model."""
    return f"This model's maximum context length is {max_model_len} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the served model allows: context and vocabulary in tokens, log probabilities a token (-1: all)."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int = 20
    reasons: bool = False
    """The model thinks before it answers."""
    parses: bool = False
    """Thoughts or calls are parsed out of what the model says."""
    max_new_tokens: int | None = None
    """Of a reply, whatever is asked for: of the model's own generation_config.json."""

    def room_behind(self, prompt_tokens: int) -> int:
        """Tokens that a reply may have behind a prompt: 0 or less where that fills the context."""
        room = self.max_model_len - prompt_tokens
        return room if self.max_new_tokens is None else min(room, self.max_new_tokens)

    def logprobs(self, wanted: int | None) -> int:
        """Log probabilities per token, with "all" (-1) spelled out; 0 for None."""
        return self.vocab_size if wanted == -1 else wanted or 0

    def check_logprobs(self, param: str, wanted: int | None) -> None:
        count, most = self.logprobs(wanted), self.logprobs(self.max_logprobs)
        if count > most:
            raise bad_request(f"{count} {param} were asked for, at most {most} are possible", param)

    def check_vocabulary(self, param: str, token_ids: Sequence[int]) -> None:
        if wrong := self._unknown(token_ids):
            raise bad_request(
                f"{param}: {wrong} are not in the vocabulary of {self.vocab_size} tokens", param
            )

    def check_prompt(self, prompt_ids: Sequence[int]) -> None:
        """A prompt has tokens, of this vocabulary, and leaves room for one more."""
        if not prompt_ids:
            raise bad_request("the prompt has no tokens")
        if len(prompt_ids) >= self.max_model_len:
            raise bad_request(
                f"{maximum_context(self.max_model_len)}: a prompt of {len(prompt_ids)} leaves no room."
            )
        if self._unknown(prompt_ids):
            raise bad_request("a token id of the prompt is not in the vocabulary")

    def _unknown(self, token_ids: Sequence[int]) -> list[int]:
        if not token_ids or min(token_ids) >= 0 and max(token_ids) < self.vocab_size:
            return []
        return list(islice((each for each in token_ids if not 0 <= each < self.vocab_size), MAX_NAMED))


def check_logprob_token_ids(ids: Sequence[int]) -> None:
    if len(ids) > MAX_LOGPROB_TOKEN_IDS:
        raise bad_request(
            f"at most {MAX_LOGPROB_TOKEN_IDS} logprob_token_ids are possible, got {len(ids)}",
            "logprob_token_ids",
        )


def check_bad_words(words: Sequence[str]) -> None:
    if not all(map(str.strip, words)):
        raise bad_request("each of bad_words needs at least one token", "bad_words")
    if len(set(words)) > MAX_BAD_WORDS:
        raise bad_request(f"at most {MAX_BAD_WORDS} bad_words are possible", "bad_words")


def check_constraint(wanted: StructuredOutputs) -> None:
    if wanted.choice == []:
        raise bad_request("structured_outputs.choice must not be empty")
    texts = {"grammar": wanted.grammar, "json": wanted.json, "structural_tag": wanted.structural_tag}
    for name, text in texts.items():
        if isinstance(text, str) and not text.strip():
            raise bad_request(f"structured_outputs.{name} must not be empty")
    check_depth(wanted.json)
    if wanted.json_object is False:
        raise bad_request("structured_outputs.json_object is true or absent")
    if wanted.regex is not None and "\0" in wanted.regex:
        raise bad_request("structured_outputs.regex must not contain NUL")


def check_depth(schema: object) -> None:
    """Objects and lists of a schema, decoded JSON, do not nest too deeply."""
    if _is_deeper_than(MAX_SCHEMA_DEPTH, schema):
        raise bad_request(f"a JSON schema nests at most {MAX_SCHEMA_DEPTH} levels")


def _is_deeper_than(levels: int, value: object) -> bool:
    layer = [value]
    for _ in range(levels + 1):
        below: list[object] = []
        found = False
        for item in layer:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            else:
                continue
            found = True
        if not found:
            return False
        layer = below
    return True
