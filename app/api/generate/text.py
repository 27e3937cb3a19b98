"""From token ids to what a chat or a completion says of them: text, parts of a message, log probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from app.api.frontend import Frontend
from app.engine.outputs import Part, PartReader
from app.parsing.hermes import HermesReader
from app.parsing.listed import ListedReader
from app.parsing.thoughts import ThoughtReader
from app.protocol.chat import ChatCompletionRequest
from app.protocol.coercion import JsonObject
from app.protocol.derender import Candidate, Logprobs, StreamState
from app.tokenization import Tokenizer

SEED = 5
"""Tokens of the prompt that the first one of a reply is decoded with."""
CONTEXT = 4
"""Tokens that may have begun a character which a later one ends."""
BROKEN = "\ufffd"


class Window:
    """Decodes the next tokens of a text of which only the last few are known."""

    def __init__(self, tokenizer: Tokenizer, skips: bool) -> None:
        """With `skips` special tokens are no part of the text."""
        self._tokenizer, self._skips = tokenizer, skips

    def strings(self, ids: Sequence[int]) -> list[str]:
        """How the vocabulary spells tokens, without special ones that are skipped."""
        tokenizer = self._tokenizer
        strings = tokenizer.token_strings(ids)
        if not self._skips:
            return strings
        return [it for it, each in zip(strings, ids, strict=True) if tokenizer.decode([each]) or not it]

    def read(self, state: StreamState, ids: Sequence[int]) -> tuple[str, StreamState]:
        """The text of `ids`, and the state behind them. Half a character waits for its end."""
        join, texts = self._tokenizer.join, []
        tokens, prefix, read = list(state.prev_tokens), state.prefix_offset, state.read_offset
        for token_id in ids:
            tokens += self.strings([token_id])
            before, now = join(tokens[prefix:read]), join(tokens[prefix:])
            if len(now) > len(before) and not now.endswith(BROKEN):
                texts.append(now[len(before) :])
                tokens, prefix, read = tokens[read:], 0, len(tokens) - read
        context = [*state.logprob_context_token_ids, *ids][-CONTEXT:]
        state = replace(
            state,
            prev_tokens=tokens[prefix:],
            prefix_offset=0,
            read_offset=max(read - prefix, 0),
            logprob_context_token_ids=context,
        )
        return "".join(texts), state


def seeded(window: Window, prompt_ids: Sequence[int] | None) -> StreamState:
    """The state behind a prompt."""
    tokens = window.strings((prompt_ids or ())[-SEED - 2 :])
    return StreamState(prev_tokens=tokens, prefix_offset=max(len(tokens) - SEED, 0), read_offset=len(tokens))


def _reader(frontend: Frontend, chat: ChatCompletionRequest) -> PartReader | None:
    """What tells thoughts and calls of a reply to `chat` apart; None where it may have neither."""
    calls: PartReader | None = None
    if chat.tools and chat.tool_choice != "none":
        as_llama = frontend.builder.settings.tools.tool_call_parser == "llama3_json"
        calls = ListedReader() if as_llama else HermesReader()
    return ThoughtReader(calls) if frontend.limits.reasons else calls


def _pieces(reader: PartReader | None, texts: Sequence[str], ends: bool) -> Iterator[tuple[Part | None, str]]:
    for text in texts:
        yield from ((None, text),) if reader is None else reader.feed(text)
    if ends and reader is not None:
        yield from reader.finish()


def chat_message(frontend: Frontend, chat: ChatCompletionRequest | None, text: str) -> JsonObject:
    """The assistant's message of a whole `text`; without `chat` nothing in it is told apart."""
    said: list[str] = []
    thoughts: list[str] = []
    calls: dict[int, tuple[str, list[str]]] = {}
    reader = None if chat is None else _reader(frontend, chat)
    for part, piece in _pieces(reader, [text], True):
        if part is None or part.raw:
            said = [part.raw] if part is not None else [*said, piece]
            calls = {} if part is not None else calls
        elif part.kind == "reasoning":
            thoughts.append(piece)
        elif part.name:
            calls.setdefault(part.number, (part.name, []))[1].append(piece)
    content = "".join(said) or (None if calls or thoughts else "")
    if chat is not None and chat.tool_choice not in ("none", "auto", None):
        content = content or ""
    message: JsonObject = {"role": "assistant", "content": content}
    message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
    if calls:
        message["tool_calls"] = [
            {
                "id": frontend.identity.fresh_id(),
                "type": "function",
                "function": {"name": name, "arguments": "".join(arguments)},
            }
            for name, arguments in calls.values()
        ]
    shows = chat is not None and chat.include_reasoning
    return message | {"reasoning": "".join(thoughts) if thoughts and shows else None}


def chat_delta(
    frontend: Frontend,
    chat: ChatCompletionRequest | None,
    window: Window,
    state: StreamState,
    ids: Sequence[int],
    ends: bool,
) -> tuple[JsonObject, StreamState]:
    """What the next tokens add to a message, and the state behind them."""
    role = None if state.role_sent else "assistant"
    if chat is None:
        text, state = window.read(state, ids)
        delta: JsonObject = {"role": role, "content": text or None, "reasoning": None}
        return delta, replace(state, role_sent=True)
    lengths = [*state.output_chunk_lens, *([len(ids)] if ids else [])]
    tokens = [*state.output_token_ids, *ids]
    pieces, texts, start = frontend.tokenizer.pieces(tokens, False), [], 0
    for length in lengths:
        texts.append("".join(pieces[start : start + length]))
        start += length
    reader = _reader(frontend, chat)
    new = texts[len(state.output_chunk_lens) :]
    for _ in _pieces(reader, texts[: len(state.output_chunk_lens)], False):
        pass
    told, calls, call_ids = (
        {"content": "", "reasoning": ""},
        dict[int, JsonObject](),
        list(state.last_tool_call_ids),
    )
    for part, piece in _pieces(reader, new, ends):
        if part is None or part.kind == "reasoning":
            told["content" if part is None else "reasoning"] += piece
        elif part.kind == "call" and not part.raw:
            _add_call(frontend, calls, call_ids, part, piece)
    delta = {"role": role, "content": told["content"] or None}
    delta["reasoning"] = (told["reasoning"] or None) if chat.include_reasoning else None
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta, replace(
        state,
        output_token_ids=tokens,
        output_chunk_lens=lengths,
        role_sent=True,
        tools_streamed=state.tools_streamed or bool(calls),
        last_tool_call_ids=call_ids,
    )


def _add_call(
    frontend: Frontend, calls: dict[int, JsonObject], call_ids: list[str], part: Part, piece: str
) -> None:
    """Put a piece of a call into its delta, which begins with id and name when it is new."""
    number = part.number
    if number not in calls:
        begins = number >= len(call_ids)
        if begins:
            call_ids.append(f"chatcmpl-tool-{frontend.identity.fresh_id()}")
        calls[number] = {
            "id": call_ids[number] if begins else None,
            "type": "function" if begins else None,
            "index": number,
            "function": {"name": part.name if begins else None, "arguments": ""},
        }
    function = calls[number]["function"]
    assert isinstance(function, dict)
    function["arguments"] += piece


def logprobs_of(tokenizer: Tokenizer, logprobs: Logprobs, context: Sequence[int]) -> JsonObject:
    """Log probabilities as a chat tells them; `context` are the tokens before."""
    if logprobs.content is None:
        return {"content": None}
    before, entries = list(context), []
    for entry in logprobs.content:
        named = [_named(tokenizer, it, before) for it in (entry, *entry.top_logprobs)]
        entries.append({**named[0], "top_logprobs": named[1:]})
        before.append(entry.token_id)
    return {"content": entries}


def _named(tokenizer: Tokenizer, it: Candidate, before: Sequence[int]) -> JsonObject:
    [text] = tokenizer.token_texts([it.token_id])
    if text.endswith(BROKEN):
        text = _completed(tokenizer, it.token_id, before[-CONTEXT:])
    return {"token": text, "logprob": it.logprob, "bytes": list(text.encode())}


def _completed(tokenizer: Tokenizer, token_id: int, before: Sequence[int]) -> str:
    """What a token adds that ends a character of those before; nothing where it ends none."""
    for count in range(1, len(before) + 1):
        whole = tokenizer.decode([*before[-count:], token_id], False)
        if not whole.endswith(BROKEN):
            return whole[len(tokenizer.decode(before[-count:], False).rstrip(BROKEN)) :]
    return ""


def completion_logprobs(found: JsonObject, offset: int) -> JsonObject:
    """The same as a text completion tells them: lists that are parallel."""
    entries = found["content"]
    lists: dict[str, list[object]] = {
        "text_offset": [],
        "token_logprobs": [],
        "tokens": [],
        "top_logprobs": [],
    }
    for entry in entries if isinstance(entries, list) else ():
        lists["text_offset"].append(offset)
        lists["tokens"].append(entry["token"])
        lists["token_logprobs"].append(entry["logprob"])
        top = {it["token"]: it["logprob"] for it in entry["top_logprobs"]}
        lists["top_logprobs"].append(top or None)
        offset += len(entry["token"])
    return {**lists}
