"""What an engine in a process of its own says of a choice, as it is emitted and counted."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.base.metrics.recorder import Recorder
from app.core.engine.errors import EngineFailedError, RequestRejectedError
from app.core.engine.outputs import EngineOutput, Failed, Finish, Part, Piece, Started, Tokens
from app.core.engine.sequence import Handle
from app.extensions.llm.remote_sequence import RemoteSequence
from app.extensions.llm.wire import EngineCoreOutput
from app.extensions.tool_calls.parsing import TextReader
from app.shared.virtual_clock import VirtualClock
from tests.core.engine.harness import engine_request

ARRIVAL_S = 100.0
NOW_S = 109.0
THOUGHT = Part("reasoning")


def words(text: str, ended: bool) -> list[Piece]:
    """Keeps a word until it is whole; one in brackets is a thought."""
    *words_before, last_word = text.split(" ")
    whole = [*words_before, last_word] if ended and last_word else words_before
    return [(THOUGHT, word[1:-1]) if word.startswith("[") else (None, word) for word in whole]


def bracketed_names(ids: Sequence[int]) -> list[str]:
    return [f"<{token_id}>" for token_id in ids]


class Play:
    """A choice, what it emits, and what it tells when it leaves."""

    def __init__(self, reader: TextReader | None = None, takes_plain: bool = False) -> None:
        self.outputs: list[EngineOutput] = []
        self.plain: list[tuple[str, int, float]] = []
        self.left: list[bool] = []
        self.takes_plain = takes_plain
        self.recorder = Recorder("test", 4096, {})
        handle = Handle({}, self.emit)
        engine: Any = SimpleNamespace(
            recorder=self.recorder,
            clock=VirtualClock(NOW_S),
            names=bracketed_names,
            reader_of=lambda request: reader,
            leave=self.leave,
        )
        request = engine_request(arrival_s=ARRIVAL_S, prompt_ids=[1] * 10)
        self.choice = RemoteSequence(engine, request, 1, handle)
        handle.begin([self.choice])

    def emit(self, output: EngineOutput) -> Any:
        self.outputs.append(output)
        if self.takes_plain and isinstance(output, Started):
            return self.emit_plain
        return None

    def emit_plain(self, *token: Any) -> None:
        self.plain.append(token)

    def leave(self, choice: RemoteSequence) -> None:
        self.left.append(choice.is_computed)

    def say(self, *texts: str, **fields: Any) -> None:
        ids = list(range(len(texts)))
        self.choice.take(
            EngineCoreOutput(key=1, ids=ids, texts=list(texts), **{"at_s": 101.0, **fields})
        )

    def tokens(self) -> list[tuple[list[str], int, Part | None, Finish | None]]:
        token_outputs = (output for output in self.outputs if isinstance(output, Tokens))
        return [
            (list(output.texts), len(output.ids), output.part, output.finish)
            for output in token_outputs
        ]

    def metric(self, name: str, labels: str = "") -> float:
        lines = self.recorder.render().splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith(f"vllm:{name}{{") and labels in line
        )


def test_tokens_of_each_remote_engine_message_are_emitted_as_one_output() -> None:
    play = Play()
    play.say("a", scheduled_s=100.5, cached_tokens=4)
    play.say("b", "c", at_s=102.0)
    play.say("d", at_s=103.0, finish="stop", stop_reason=7)
    assert play.outputs[0] == Started(0, 101.0, 4, None, queued_s=100.0, scheduled_s=100.5)
    assert play.tokens() == [
        (["a"], 1, None, None),
        (["b", "c"], 2, None, None),
        (["d"], 1, None, Finish("stop", 7)),
    ]
    assert play.choice.over and play.left == [False]
    play.say("e")
    assert len(play.outputs) == 4


def test_token_shortcut_is_used_only_for_single_tokens_within_a_reply() -> None:
    play = Play(takes_plain=True)
    play.say("a")
    play.say("b", at_s=102.0)
    play.say("c", "d", at_s=103.0)
    play.say("e", at_s=104.0, finish="length")
    play.say("f", at_s=105.0)
    assert play.plain == [("a", 0, 101.0), ("b", 0, 102.0)]
    assert [texts for texts, *_ in play.tokens()] == [["c", "d"], ["e"]]


def test_tokens_of_buffered_text_are_emitted_with_that_text() -> None:
    play = Play(TextReader(words))
    play.say("On")
    play.say("e ", "tw")
    play.say("o [th")
    play.say("i", "nk] ", "so", finish="stop")
    assert play.tokens() == [
        (["", "One"], 2, None, None),
        (["", "two"], 2, None, None),
        (["", "think"], 2, THOUGHT, None),
        (["so"], 1, None, Finish("stop")),
    ]


@pytest.mark.parametrize("ids", [[1], [1, 2, 3]])
def test_output_with_unequal_numbers_of_tokens_and_texts_is_rejected(
    ids: list[int],
) -> None:
    with pytest.raises(ValueError):
        Play(TextReader(words)).choice.take(
            EngineCoreOutput(key=1, ids=ids, texts=["a", "b"], at_s=101.0)
        )


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"finish": "error", "error": "It broke."}, EngineFailedError, "It broke."),
        (
            {"finish": "error", "error": "Too long.", "is_refused": True},
            RequestRejectedError,
            "Too long.",
        ),
        ({"finish": "timeout"}, EngineFailedError, "waited too long"),
    ],
)
def test_failure_of_a_choice_is_emitted_only_once(
    fields: Any, error: type[Exception], message: str
) -> None:
    play = Play()
    play.say(**fields)
    [failed] = play.outputs
    assert (
        isinstance(failed, Failed) and type(failed.error) is error and message in str(failed.error)
    )
    assert play.left == [False]
    play.choice.fail(ZeroDivisionError())
    play.choice.abort()
    play.choice.interrupt()
    assert len(play.outputs) == 1 and play.left == [False]
    assert play.metric("request_success_total", 'finished_reason="error"') == 1
    assert play.metric("request_generation_tokens_sum") == 0
    assert play.metric("request_queue_time_seconds_sum") == NOW_S - ARRIVAL_S
    assert play.metric("request_decode_time_seconds_sum") == 0
