"""Joins the tokens of a stream, as vLLM's output processor does with `stream_interval`."""

from collections.abc import Iterator

from app.core.engine.outputs import Part, TokenLogprob, Tokens


class HeldTokens:
    """Tokens of one choice that wait for more, all of one part."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.part: Part | None = None
        self.has_sent = False

    def add(self, output: Tokens, position: int) -> None:
        """Adds the token at `position` in `output`."""
        self.part = output.part
        self.texts.append(output.texts[position])
        self.ids += output.ids[position : position + 1]
        if output.logprobs is not None:
            self.logprobs += output.logprobs[position : position + 1]

    def release(self, output: Tokens, has_finish: bool) -> Tokens:
        """Returns the tokens as one text of several ids, and forgets them."""
        joined = Tokens(
            index=output.index,
            texts=["".join(self.texts)] if self.texts else [],
            ids=self.ids,
            at_s=output.at_s,
            logprobs=None if output.logprobs is None else self.logprobs,
            finish=output.finish if has_finish else None,
            part=self.part,
        )
        self.texts = []
        self.ids = []
        self.logprobs = []
        self.has_sent = True
        return joined


class TokenJoiner:
    """Sends the first token of a choice at once, then every `interval` tokens, and the rest.

    vLLM's parsers may put thoughts and text into one event; here a part ends an event.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._choices: dict[int, HeldTokens] = {}

    def join(self, output: Tokens) -> Iterator[Tokens]:
        """Returns what is due after `output`; each item is shown in one event."""
        held = self._choices.setdefault(output.index, HeldTokens())
        if held.texts and held.part != output.part:
            yield held.release(output, has_finish=False)
        count = len(output.texts)
        for position in range(count):
            held.add(output, position)
            is_end = position == count - 1 and output.finish is not None
            if not is_end and (not held.has_sent or len(held.ids) >= self._interval):
                yield held.release(output, has_finish=False)
        if output.finish is not None:
            held.part = output.part
            yield held.release(output, has_finish=True)
