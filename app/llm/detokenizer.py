"""The text of a reply, token by token: no half characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers.decoders import DecodeStream


class Detokenizer:
    """One reply. `stopped` is the stop string that has come, if any."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self.stopped: str | None = None
        self._backend = backend
        self._stops = stops
        self._include_stop = include_stop
        self._skip = skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._ids: list[int] = []
        self._length = 0
        """Characters that the stream has given."""
        self._held = ""
        """Text that may be the beginning of a stop string."""

    def add(self, token_id: int, may_stop: bool = True) -> str:
        """The text that can be shown now. Without `may_stop` no stop string counts yet."""
        self._ids.append(token_id)
        text = self._step(token_id)
        self._length += len(text)
        return self._checked(text, may_stop)

    def finish(self) -> str:
        """The rest: what was held back, and what of a character has come."""
        if self.stopped is not None:
            return ""
        whole = self._backend.decode(self._ids, skip_special_tokens=self._skip)
        tail = self._checked(whole[self._length :], may_stop=True)
        held, self._held = self._held, ""
        return tail + held

    def _step(self, token_id: int) -> str:
        try:
            return self._stream.step(self._backend, token_id) or ""
        except Exception:  # the library's word for text that does not grow from its prefix
            self._stream = DecodeStream(skip_special_tokens=self._skip)
            return self._stream.step(self._backend, token_id) or ""

    def _checked(self, text: str, may_stop: bool) -> str:
        if not self._stops:
            return text
        text = self._held + text
        if not may_stop:
            self._held = ""
            return text
        found = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            place, self.stopped = min(found)
            self._held = ""
            return text[: place + len(self.stopped)] if self._include_stop else text[:place]
        safe = len(text) - self._beginning(text)
        self._held = text[safe:]
        return text[:safe]

    def _beginning(self, text: str) -> int:
        """Characters at the end of `text` with which a stop string may have begun."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        return next((n for n in range(longest, 0, -1) if self._begins(text[-n:])), 0)

    def _begins(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)
