"""Log probabilities in the shapes of chat, of text completions and of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.engine.outputs import TokenLogprob


def token_name(token_id: int, text: str, as_id: bool) -> str:
    """How a token is called: its text, or `token_id:N`."""
    return f"token_id:{token_id}" if as_id else text


def chat_entries(entries: Sequence[TokenLogprob], top: int, as_id: bool) -> list[dict[str, Any]]:
    """The `content` list of a chat choice; `top` alternatives each, the token itself first, -1 for all."""
    return [
        {
            "token": token_name(entry.token_id, entry.token, as_id),
            "logprob": entry.logprob,
            "bytes": list(entry.token.encode()),
            "top_logprobs": [
                _alternative(token_name(token_id, text, as_id), logprob)
                for token_id, text, logprob in (entry.top if top == -1 else entry.top[:top])
            ],
        }
        for entry in entries
    ]


def _alternative(name: str, logprob: float) -> dict[str, Any]:
    """One of `top_logprobs`. Its bytes are those of the name shown, the entry's own those of its text."""
    return {"token": name, "logprob": logprob, "bytes": list(name.encode())}


def completion_logprobs(
    entries: Sequence[TokenLogprob | None], texts: Sequence[str], as_id: bool, offset: int = 0
) -> dict[str, list[Any]]:
    """The `logprobs` object of a text choice; `texts` names tokens whose entry is None.

    `offset` is where the first token begins, in characters.
    """
    tokens, offsets = [], []
    for entry, text in zip(entries, texts, strict=True):
        tokens.append(text if entry is None else token_name(entry.token_id, entry.token, as_id))
        offsets.append(offset)
        offset += len(tokens[-1])
    return {
        "text_offset": offsets,
        "token_logprobs": [None if entry is None else entry.logprob for entry in entries],
        "tokens": tokens,
        "top_logprobs": [
            None
            if entry is None
            else {token_name(token_id, text, as_id): lp for token_id, text, lp in entry.top}
            for entry in entries
        ],
    }


def prompt_entries(entries: Sequence[TokenLogprob | None] | None) -> list[dict[str, Any] | None] | None:
    """The `prompt_logprobs` list: by token id, with rank and text; null for the first token."""
    if entries is None:
        return None
    return [
        None
        if entry is None
        else {
            str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": text}
            for rank, (token_id, text, logprob) in enumerate(entry.top, 1)
        }
        for entry in entries
    ]
