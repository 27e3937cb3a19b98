"""Reads that wait for blocks: their number and memory are bounded, whatever other pods send."""

from functools import partial

import msgspec
import pytest

from app.extensions.handoff.early_reads import LIMIT_BYTES, MAX_WAITING, NOT_PREFILLED, EarlyReads
from app.extensions.handoff.messages import (
    MAX_ID_CHARS,
    PENDING,
    Done,
    Question,
    Read,
    encode,
    question_decoder,
)
from config.untrusted import MistypedDataError, decode_untrusted


def test_waiting_reads_take_bounded_memory_and_the_oldest_are_answered() -> None:
    early = EarlyReads()
    answers: list[tuple[int, str]] = []

    def reply(number: int, problem: str) -> None:
        answers.append((number, problem))

    for number in range(3_000):
        message = Read(f"{number} ".ljust(MAX_ID_CHARS, "x"), "reader")
        assert early.wait(message, partial(reply, number)) == PENDING
    assert early.size_bytes <= LIMIT_BYTES
    assert 0 < len(early) < 3_000
    assert answers == [(number, NOT_PREFILLED) for number in range(3_000 - len(early))]


def test_number_of_waiting_and_abandoned_reads_is_bounded() -> None:
    early = EarlyReads()
    for number in range(MAX_WAITING + 50):
        early.wait(Read(str(number), "reader"), str)
        early.abandon(Done(f"other {number}", "reader"))
    assert len(early) <= MAX_WAITING
    assert early.size_bytes <= early.limit_bytes
    assert not early.is_abandoned("other 0")
    assert early.is_abandoned(f"other {MAX_WAITING + 49}")


@pytest.mark.parametrize(
    "message", [Read("x" * 5_000, "r"), Read("x", "r" * 5_000), Done("x" * 900_000, "r")]
)
def test_message_with_a_huge_id_is_rejected(message: Read | Done) -> None:
    data = encode(Question(1, "engine", message))
    with pytest.raises(MistypedDataError):
        decode_untrusted(data, decoder=question_decoder)
    assert msgspec.msgpack.decode(data)["number"] == 1
