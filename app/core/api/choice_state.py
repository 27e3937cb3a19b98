"""State of the choices of an answer: counts, log probabilities and segments of the reply."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from app.core.engine.outputs import Finish, Part, TokenLogprob, Tokens

UNFINISHED = Finish("abort")

NewId = Callable[[Part | None], str]
"""Returns the id of a new segment for tokens of a part."""


class Segment(Struct):
    """Consecutive tokens of one part of the reply; `part` None is the reply's own text."""

    part: Part | None
    id: str = ""
    texts: list[str] = []
    logprobs: list[Sequence[TokenLogprob]] = []
    """Log probabilities as they came; may be computed only on access."""

    @property
    def kind(self) -> str:
        """The part's kind, or "text" for the reply's own text."""
        if self.part is None:
            return "text"
        return self.part.kind

    @property
    def text(self) -> str:
        """The joined texts of all tokens."""
        return "".join(self.texts)


class ChoiceState(Struct):
    """State of one choice: its counts and, where an answer needs it, its content."""

    tokens: int = 0
    reasoning_tokens: int = 0
    finish: Finish = UNFINISHED
    ended_s: float = 0.0
    """Time when the last token was due, in monotonic seconds."""
    called: bool = False
    ids: list[int] = []
    logprobs: list[Sequence[TokenLogprob]] = []
    segments: list[Segment] = []

    def count(self, output: Tokens) -> None:
        """Adds the tokens to the counts, and records the end of the choice."""
        self.ids += output.ids
        self.tokens += len(output.ids)
        if output.finish is not None:
            self.finish = output.finish
            self.ended_s = output.at_s
        if output.part is not None and output.part.kind == "reasoning":
            self.reasoning_tokens += len(output.ids)

    def collect(self, output: Tokens) -> None:
        """Collects tokens of a whole answer."""
        if output.logprobs is not None:
            self.logprobs.append(output.logprobs)
        if output.part is None or not self.collect_cut_off_call(output):
            self.append(output)

    def append(self, output: Tokens, new_id: NewId | None = None) -> Segment | None:
        """Appends the tokens to the last segment or a new one.

        Returns None when the tokens show nothing.
        """
        self.count(output)
        part = output.part
        segment = self.current_segment(part)
        if segment is None:
            opens_segment = output.logprobs is not None
            if part is not None:
                opens_segment = part.name != ""
            if not opens_segment and not any(output.texts):
                return None
            segment = self.open_segment(part, new_id)
        segment.texts += output.texts
        return segment

    def collect_cut_off_call(self, output: Tokens, new_id: NewId | None = None) -> bool:
        """Collects tokens of a tool call that was cut off: a whole answer shows them as text.

        Returns False, and collects nothing, for all other tokens.
        """
        part = output.part
        if part is None or not part.raw:
            return False
        self.count(output)
        segment = self.current_segment(None)
        if segment is None or segment.texts != [part.raw]:
            self.called = False
            self.segments = [
                segment for segment in self.segments if segment.kind in ("reasoning", "image")
            ]
            self.open_segment(None, new_id).texts.append(part.raw)
        return True

    def current_segment(self, part: Part | None) -> Segment | None:
        """Returns the segment that tokens of `part` continue; None when they start a new one."""
        if self.segments and self.segments[-1].part == part:
            return self.segments[-1]
        return None

    def open_segment(self, part: Part | None, new_id: NewId | None = None) -> Segment:
        """Appends an empty segment and returns it; without `new_id` it has no id."""
        segment = Segment(part)
        if new_id is not None:
            segment.id = new_id(part)
        self.segments.append(segment)
        if part is not None and part.kind == "call":
            self.called = True
        return segment

    def texts_by_kind(self) -> dict[str, str]:
        """Returns the reply's text of each kind of segment; the key "text" always exists."""
        texts = {"text": ""}
        for segment in self.segments:
            texts[segment.kind] = texts.get(segment.kind, "") + segment.text
        return texts
