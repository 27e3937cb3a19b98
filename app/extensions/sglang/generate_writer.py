"""Answers of `/generate`: texts and token ids so far, with SGLang's `meta_info`.

Every event of a stream repeats the whole text, so each choice keeps its JSON, which grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from msgspec import Raw, Struct

from app.core.api.logprobs import rendered
from app.core.api.weight_spans import Weights
from app.core.api.writer import ResponseWriter
from app.core.engine.outputs import EngineOutput, Failed, Finish, Started, TokenLogprob, Tokens
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import encode
from app.core.server.http.response import DONE, event_of
from app.extensions.sglang.batches import PromptItem
from app.extensions.sglang.errors import as_sglang_error

ABORTED = "Aborted"


class WriterOptions(Struct, frozen=True, kw_only=True):
    """Parts of the server, and options of a request, that all its choices share."""

    shows_texts: bool
    """Log probabilities name tokens by their texts."""
    shows_prompt: bool
    eos_token_id: int | None
    weights: Weights
    token_texts: Callable[[Sequence[int]], Sequence[str]]
    arrival_s: float
    """In monotonic seconds."""


class Choice:
    """One prompt and its reply so far."""

    def __init__(
        self, item: PromptItem, rid: str, prompt_ids: Sequence[int], options: WriterOptions
    ) -> None:
        self._item = item
        self._rid = rid
        self._prompt_ids = prompt_ids
        self._options = options
        self._is_prompt_only = item.params.limit == 0
        self._text = bytearray()
        """JSON of the text so far, without quotation marks."""
        self._ids = bytearray()
        """JSON of the token ids so far, without brackets."""
        self._tokens = 0
        self._reasoning_tokens = 0
        self._started: Started | None = None
        self._logprobs = bytearray()
        self._alternatives = bytearray()
        self._finish: JsonObject | None = None
        self._ended_s = 0.0
        self._unsent_tokens = 0
        self._has_sent = False

    def start(self, output: Started) -> None:
        """Records the start, with log probabilities of the prompt."""
        self._started = output

    def add(self, output: Tokens) -> None:
        """Adds tokens, and perhaps the end."""
        part = output.part
        if not self._is_prompt_only and (part is None or part.kind != "image"):
            for text in output.texts:
                self._text += encode(text)[1:-1]
            ids = encode(output.ids)[1:-1]
            if ids:
                self._ids += b"," * bool(self._ids) + ids
            self._tokens += len(output.ids)
            self._unsent_tokens += len(output.ids)
            if part is not None and part.kind == "reasoning":
                self._reasoning_tokens += len(output.ids)
            if output.logprobs is not None and self._item.logprobs:
                self._add_logprobs(output.logprobs)
        if output.finish is not None:
            self._finish = self._finish_reason(output.finish)
            self._ended_s = output.at_s

    def fail(self, message: str, status: int) -> None:
        """Ends the choice with an error."""
        self._finish = {
            "type": "abort",
            "message": message,
            "status_code": status,
            "err_type": None,
        }

    @property
    def is_due(self) -> bool:
        """True if an event should show the new tokens: at the first, the last, and an interval."""
        interval = self._item.params.stream_interval or 1
        return self._finish is not None or not self._has_sent or self._unsent_tokens >= interval

    def render(self, index: int | None = None) -> bytes:
        """Returns the JSON of the choice; `index` is its number in a stream of several."""
        self._has_sent = True
        self._unsent_tokens = 0
        parts: list[bytes | bytearray] = [
            b'{"text":"',
            self._text,
            b'","output_ids":[',
            self._ids,
            b'],"meta_info":',
        ]
        parts.append(encode(self._meta_info()))
        if self._options.shows_prompt:
            parts += [b',"prompt_token_ids":', encode(self._prompt_ids)]
        if index is not None:
            parts.append(b',"index":%d' % index)
        parts.append(b"}")
        return b"".join(parts)

    def _meta_info(self) -> JsonObject:
        started = self._started
        meta_info: JsonObject = {
            "id": self._rid,
            "finish_reason": self._finish,
            "prompt_tokens": len(self._prompt_ids),
            "weight_version": self._options.weights.version,
            "num_retractions": 0,
        }
        if self._item.logprobs:
            meta_info |= self._logprob_lists()
        meta_info["reasoning_tokens"] = self._reasoning_tokens
        meta_info["completion_tokens"] = self._tokens
        meta_info["cached_tokens"] = 0 if started is None else started.cached_tokens
        if self._ended_s:
            meta_info["e2e_latency"] = max(0.0, self._ended_s - self._options.arrival_s)
        return meta_info

    def _finish_reason(self, finish: Finish) -> JsonObject:
        if finish.reason == "length" or self._is_prompt_only:
            return {"type": "length", "length": self._tokens}
        if finish.reason == "abort":
            return {"type": "abort", "message": ABORTED, "status_code": None, "err_type": None}
        matched = finish.stop_reason
        if matched is None and finish.reason == "stop":
            matched = self._options.eos_token_id
        return {"type": "stop", "matched": matched}

    # Log probabilities: [logprob, token id, text or null].

    def _add_logprobs(self, entries: Sequence[TokenLogprob]) -> None:
        for entry in entries:
            triple = self._triple(entry.logprob, entry.token_id, entry.token)
            self._logprobs += b"," * bool(self._logprobs) + encode(triple)
            if self._has_alternatives:
                separator = b"," * bool(self._alternatives)
                self._alternatives += separator + encode(self._alternatives_of(entry))

    @property
    def _has_alternatives(self) -> bool:
        return bool(self._item.top_logprobs or self._item.logprob_ids)

    def _triple(self, logprob: float | None, token_id: int, text: str) -> Sequence[object]:
        return (logprob, token_id, text if self._options.shows_texts else None)

    def _alternatives_of(self, entry: TokenLogprob) -> list[Sequence[object]]:
        wanted_ids = self._item.logprob_ids
        alternatives = entry.top
        if wanted_ids:
            alternatives = [triple for triple in entry.top if triple[0] in wanted_ids]
        else:
            alternatives = alternatives[: self._item.top_logprobs]
        return [self._triple(logprob, token_id, text) for token_id, text, logprob in alternatives]

    @cached_property
    def _prompt_lists(self) -> JsonObject:
        """Lists of log probabilities of the prompt; not to be asked for before the start.

        They are written with the answer: for a client that leaves, writing ends early, and a
        sequence that could not start for this reason would look like a failure of the engine.
        """
        entries = None if self._started is None else self._started.prompt_logprobs
        if entries is None:
            return {}
        start = self._item.logprob_start
        shown = entries[start:]
        first_triple: Sequence[object] = ()
        if start == 0 and self._prompt_ids:
            [text] = self._options.token_texts(self._prompt_ids[:1])
            first_triple = self._triple(None, self._prompt_ids[0], text)

        def triple_of(entry: TokenLogprob | None) -> Sequence[object]:
            if entry is None:
                return first_triple
            return self._triple(entry.logprob, entry.token_id, entry.token)

        def alternatives_of(entry: TokenLogprob | None) -> object:
            return None if entry is None else self._alternatives_of(entry)

        lists: JsonObject = {"tokens": rendered((shown,), triple_of)}
        if self._has_alternatives:
            lists["alternatives"] = rendered((shown,), alternatives_of)
        return lists

    def _logprob_lists(self) -> JsonObject:
        lists: JsonObject = {
            "input_token_logprobs": self._prompt_lists.get("tokens", ()),
            "output_token_logprobs": Raw(b"[%b]" % bytes(self._logprobs)),
            "output_token_logprobs_length": self._tokens,
        }
        if self._has_alternatives:
            name = "token_ids_logprobs" if self._item.logprob_ids else "top_logprobs"
            lists[f"input_{name}"] = self._prompt_lists.get("alternatives", ())
            lists[f"output_{name}"] = Raw(b"[%b]" % bytes(self._alternatives))
        return lists


class GenerateWriter(ResponseWriter):
    """Writes the answer to one request, as a stream or whole."""

    def __init__(self, items: Sequence[Choice], is_list: bool) -> None:
        super().__init__(len(items))
        self._items = items
        self._is_list = is_list

    def chunk(self, output: EngineOutput) -> bytes:
        """Returns the event of an output; empty where nothing is due."""
        if type(output) is Failed:
            self.has_failed = True
            return self._failure(output)
        self.collect(output)
        choice = self._items[output.index]
        if type(output) is Started or not choice.is_due:
            return b""
        return self._event(output.index)

    def collect(self, output: EngineOutput) -> None:
        """Collects an output. Raises the error of a failed choice."""
        if type(output) is Tokens:
            self._items[output.index].add(output)
        elif type(output) is Started:
            self._items[output.index].start(output)
        elif type(output) is Failed:
            raise output.error

    def _event(self, index: int) -> bytes:
        shown_index = index if self._is_list else None
        return b"data: %b\n\n" % self._items[index].render(shown_index)

    def _failure(self, output: Failed) -> bytes:
        error = as_sglang_error(output.error)
        if error.status == 400:
            body = {
                "message": error.message,
                "type": "invalid_request_error",
                "code": 400,
                "retryable": False,
            }
            return event_of({"error": body})
        self._items[output.index].fail(error.message, error.status)
        return self._event(output.index)

    def closing(self) -> bytes:
        """Returns the end of the stream."""
        return DONE

    def body(self) -> bytes:
        """Returns the whole answer as JSON, once all outputs are collected."""
        bodies = [choice.render() for choice in self._items]
        if self._is_list:
            return b"[%b]" % b",".join(bodies)
        return bodies[0]
