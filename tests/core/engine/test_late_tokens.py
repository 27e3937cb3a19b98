"""Plain tokens of a server that falls behind: those that are due together."""

import pytest

from app.core.engine.outputs import EngineOutput, Started, TakeToken, Tokens
from app.core.engine.request import STOP, Reply
from tests.core.engine.harness import START_S, Harness, engine_request

TEXTS = [f"{number} " for number in range(20)]
GAP_S = 1.0


class Receiver:
    """Receives outputs, and takes plain tokens by themselves."""

    def __init__(self) -> None:
        self.texts: dict[int, list[str]] = {0: [], 1: []}
        self.taken: list[tuple[str, float]] = []
        self.sizes: list[int] = []
        """Numbers of tokens of the outputs."""

    def emit(self, output: EngineOutput) -> TakeToken | None:
        if isinstance(output, Tokens):
            self.texts[output.index] += output.texts
            self.sizes.append(len(output.texts))
        if not isinstance(output, Started):
            return None
        texts = self.texts[output.index]

        def take(text: str, token_id: int, at_s: float) -> None:
            texts.append(text)
            self.taken.append((text, at_s))

        return take


def delayed_run(late_s: float, choices: int = 1) -> tuple[Harness, Receiver]:
    """Stops the clock's alarm for `late_s` after three tokens; the next turn is over at the end."""
    harness = Harness(inter_token_latency=GAP_S, time_to_first_token=GAP_S)
    receiver = Receiver()
    requests = [
        engine_request(index=index, max_tokens=len(TEXTS), num_choices=choices)
        for index in range(choices)
    ]
    replies = [Reply(TEXTS, list(range(len(TEXTS))), STOP) for _ in requests]
    harness.engine.run(requests, replies, receiver.emit)
    harness.clock.advance(3.5 * GAP_S)
    receiver.taken.clear()
    receiver.sizes.clear()
    harness.clock._now += late_s
    harness.clock.advance(0.0)
    return harness, receiver


@pytest.mark.parametrize(("late_s", "due"), [(0.6, 1), (1.6, 2), (3.4, 3)])
def test_few_late_tokens_are_taken_one_by_one_in_one_turn(late_s: float, due: int) -> None:
    harness, receiver = delayed_run(late_s * GAP_S)
    expected = [(TEXTS[3 + n], pytest.approx(START_S + (4 + n) * GAP_S)) for n in range(due)]
    assert receiver.taken == expected and receiver.sizes == []
    harness.clock.advance(30 * GAP_S)
    assert receiver.texts[0] == TEXTS and harness.is_idle()


def test_many_late_tokens_share_an_output() -> None:
    harness, receiver = delayed_run(9.6 * GAP_S)
    assert receiver.taken == [] and receiver.sizes == [10]
    harness.clock.advance(30 * GAP_S)
    assert receiver.texts[0] == TEXTS and harness.is_idle()
    assert harness.metric("generation_tokens_total") == len(TEXTS)


def test_late_choices_alternate() -> None:
    harness, receiver = delayed_run(1.6 * GAP_S, choices=2)
    assert [len(texts) for texts in receiver.texts.values()] == [4, 4]
    harness.clock.advance(30 * GAP_S)
    assert list(receiver.texts.values()) == [TEXTS, TEXTS] and harness.is_idle()
