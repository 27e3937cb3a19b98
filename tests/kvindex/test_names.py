"""Names are looked up beside: what is slow or fails there is told later, and holds up nobody."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import pytest

from app.kvcache.endpoints import is_name
from app.kvindex.pods import DnsTargets, Names, NotToldYet, parse_target
from tests.kvcache.sockets import until


def test_a_slow_answer_is_told_when_it_has_come(caplog: pytest.LogCaptureFixture) -> None:
    may_answer, asked = Event(), list[str]()

    def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        may_answer.wait(10)
        return ["10.0.0.1"]

    names = Names(resolve)
    source = DnsTargets(parse_target("pods.example:5557"), names)
    assert list(source.targets()) == list(source.targets()) == []
    with pytest.raises(NotToldYet):
        names("pods.example")
    assert asked == ["pods.example"], "nobody is asked twice at a time"
    assert not names.take_news() and not caplog.records
    may_answer.set()
    until(names.take_news)
    assert [target.endpoint for target in source.targets()] == ["tcp://10.0.0.1:5557"]
    until(lambda: len(asked) == 2)
    assert not names.take_news(), "the same again is no news"


def test_a_failure_is_told_again_and_the_last_answer_stays(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[list[str] | OSError] = [["10.0.0.1"], OSError("later"), ["10.0.0.2"]]

    def resolve(host: str) -> Sequence[str]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    names = Names(resolve)
    source = DnsTargets(parse_target("pods.example:5557"), names)
    seen: list[str] = []

    def sees(endpoint: str) -> bool:
        seen.extend(target.endpoint for target in source.targets())
        return seen[-1:] == [endpoint]

    until(lambda: sees("tcp://10.0.0.1:5557"))
    until(lambda: sees("tcp://10.0.0.2:5557"))
    assert len(caplog.records) == 1 and "later" in caplog.text


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://127.0.0.1:5557", False),
        ("tcp://[::1]:5557", False),
        ("tcp://*:5557", False),
        ("tcp://:::5557", False),
        ("ipc:///tmp/a", False),
        ("inproc://a", False),
        ("tcp://vllm-0.vllm:5557", True),
        ("tcp://cafe:5557", True),
    ],
)
def test_what_has_to_be_looked_up(endpoint: str, expected: bool) -> None:
    assert is_name(endpoint) is expected
