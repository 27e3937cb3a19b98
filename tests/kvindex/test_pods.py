"""Where pods publish, what their topics call them, and which of them are still there."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.pods import (
    MOST_NAME_BYTES,
    DnsTargets,
    FileTargets,
    PodEndpoint,
    PodTracker,
    TargetSource,
    Topic,
    parse_target,
    parse_topic,
    resolve_host,
    target_sources,
)


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        ("kv@a@org/m", Topic("a", "org/m", True)),
        ("kv@10.0.0.1:8000@m@x", Topic("10.0.0.1:8000", "m@x", True)),
        ("kv@a@", Topic("a", "", True)),
        ("kv@a", Topic("a", None, True)),
        ("events", Topic("events", None, False)),
        ("a@kv@m", Topic("a@kv@m", None, False)),
        ("x", Topic("x", None, False)),
        ("é" * (MOST_NAME_BYTES // 2), Topic("é" * (MOST_NAME_BYTES // 2), None, False)),
    ],
)
def test_a_topic_names_a_pod_and_perhaps_its_model(topic: str, named: Topic) -> None:
    assert parse_topic(topic.encode()) == named


@pytest.mark.parametrize(
    "topic", [b"", b"kv@", b"kv@@m", b"\xff", b"a\nb", b"kv@a\0@m", b"x" * (MOST_NAME_BYTES + 1)]
)
def test_what_is_no_name_names_nobody(topic: bytes) -> None:
    assert parse_topic(topic) is None


def now(source: TargetSource) -> Sequence[PodEndpoint]:
    """The endpoints after another look."""
    source.refresh()
    return source.targets


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("tcp://10.0.0.1:5557", PodEndpoint("tcp://10.0.0.1:5557")),
        ("10.0.0.1:5557", PodEndpoint("tcp://10.0.0.1:5557")),
        (" [::1]:5557 ", PodEndpoint("tcp://[::1]:5557")),
        ("ipc:///tmp/events", PodEndpoint("ipc:///tmp/events")),
        (
            "pod:1;replay=tcp://pod:2;pod=a;model=org/m",
            PodEndpoint("tcp://pod:1", "tcp://pod:2", "a", "org/m"),
        ),
    ],
)
def test_targets_are_addresses_with_options(text: str, target: PodEndpoint) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":5", "h:0", "h:99999", "h:x", "h:１", "http://h:1", "h:1;x=y", "h:1;pod=",
     "h:1;replay=h", "ipc://", "h:1;pod", "dns://h", "dns://h:0", "dns://h:1;x=y", "dns://:1", "dns://"],
)  # fmt: skip
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        target_sources([text])


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pods"
    source = FileTargets(path)
    assert now(source) == () == now(source)
    assert len(caplog.records) == 1
    path.write_text("# pods\nh:1   # the first\n\nbad line\nh:2;pod=b\n")
    assert now(source) == [PodEndpoint("tcp://h:1"), PodEndpoint("tcp://h:2", pod="b")]
    assert "line 4" in caplog.text
    path.write_text("h:3\n")
    os.utime(path, ns=(1, 1))
    assert [target.endpoint for target in now(source)] == ["tcp://h:3"]
    path.unlink()
    assert [target.endpoint for target in now(source)] == ["tcp://h:3"]
    path.write_bytes(b"\xff")
    assert [target.endpoint for target in now(source)] == ["tcp://h:3"]


def test_a_name_stands_for_all_its_addresses(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[list[str] | OSError] = [
        ["10.0.0.1", "fd00::1"],
        OSError("later"),
        OSError("later"),
        ["10.0.0.2"],
        [],
    ]

    def resolve(host: str) -> list[str]:
        assert host == "pods.example"
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    source = DnsTargets(parse_target("pods.example:5557;replay=tcp://pods.example:5558"), resolve)
    both = [
        PodEndpoint("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"),
        PodEndpoint("tcp://[fd00::1]:5557", "tcp://[fd00::1]:5558"),
    ]
    assert now(source) == both == now(source) == now(source)
    assert len(caplog.records) == 1
    assert [target.endpoint for target in now(source)] == ["tcp://10.0.0.2:5557"]
    assert now(source) == []
    assert "pods.example has no addresses, or nobody knows it" in caplog.text


@pytest.mark.parametrize(
    ("options", "replay", "pod", "model"),
    [
        ("", None, None, None),
        (";model=org/m", None, None, "org/m"),
        (";replay=tcp://127.0.0.1:9;pod=a", "tcp://127.0.0.1:9", "a", None),
        (";replay=tcp://*:9;model=m", "tcp://127.0.0.1:9", None, "m"),
        (";replay=tcp://elsewhere:9", "tcp://elsewhere:9", None, None),
    ],
)
def test_a_name_has_the_options_of_a_target(
    options: str, replay: str | None, pod: str | None, model: str | None
) -> None:
    (source,) = target_sources([f"dns://127.0.0.1:7{options}"])
    assert now(source) == [PodEndpoint("tcp://127.0.0.1:7", replay, pod, model)]


def test_several_pods_under_one_name_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    source = DnsTargets(parse_target("pods.example:1;pod=a"), lambda host: ["10.0.0.1", "10.0.0.2"])
    assert [target.name for target in now(source)] == ["a", "a"] and now(source)
    assert len(caplog.records) == 1 and "all of them called a" in caplog.text
    source = DnsTargets(parse_target("pods.example:1;pod=a"), lambda host: ["10.0.0.1"])
    assert [target.name for target in now(source)] == ["a"] and len(caplog.records) == 1


def test_the_systems_resolver_tells_nobody_from_not_now(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "127.0.0.1" in resolve_host("127.0.0.1")
    for error, known in ((socket.EAI_NONAME, True), (socket.EAI_AGAIN, False)):

        def fail(*args: object, code: int = error, **more: object) -> None:
            raise socket.gaierror(code, "no")

        monkeypatch.setattr("app.kvindex.pods.getaddrinfo", fail)
        if known:
            assert resolve_host("x") == []
        else:
            with pytest.raises(OSError):
                resolve_host("x")


def test_a_list_may_name_all_kinds_of_sources(tmp_path: Path) -> None:
    path = tmp_path / "pods"
    path.write_text("h:1")
    sources = target_sources(["a:1", f"file:{path}", f"file://{path}", "dns://127.0.0.1:7", "b:2"])
    assert [[target.endpoint for target in now(source)] for source in sources] == [
        ["tcp://a:1", "tcp://b:2"],
        ["tcp://h:1"],
        ["tcp://h:1"],
        ["tcp://127.0.0.1:7"],
    ]
    with pytest.raises(ValueError):
        target_sources(["dns://name"])


class Diary:
    """What `PodTracker` should know, in the plainest words: pod -> connection, and when it will be gone."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.heard_on: dict[str, int | None] = {}
        self.closed: set[int] = set()
        self.due: dict[str, float] = {}

    def on(self, connection: int) -> list[str]:
        return [pod for pod, other in self.heard_on.items() if other == connection]

    def write(self, what: str, pod: str, connection: int, now: float) -> None:
        match what:
            case "seen":
                self.heard_on[pod] = connection
                if connection in self.closed:
                    self.due.setdefault(pod, now + self.grace_s)
                else:
                    self.due.pop(pod, None)
            case "closed":
                self.closed.add(connection)
                self.due |= {each: now + self.grace_s for each in self.on(connection) if each not in self.due}
            case "opened":
                self.closed.discard(connection)
                for each in self.on(connection):
                    self.due.pop(each, None)
            case "replaced":
                self.closed.discard(connection)
                self.heard_on |= dict.fromkeys(self.on(connection))
            case "forget":
                self.strike(pod)

    def strike(self, pod: str) -> None:
        self.heard_on.pop(pod, None)
        self.due.pop(pod, None)

    def gone(self, now: float) -> set[str]:
        return {pod for pod, due in self.due.items() if due <= now}


whats = st.sampled_from(["seen", "seen", "seen", "closed", "opened", "replaced", "forget"])


@given(st.lists(st.tuples(whats, st.sampled_from("abcd"), st.integers(1, 3), st.integers(0, 9)), max_size=40))
def test_whatever_connections_do_it_is_known_who_is_there(history: list[tuple[str, str, int, int]]) -> None:
    presence, diary, now = PodTracker(10), Diary(10), 0
    for what, pod, connection, later in history:
        now += later
        match what:
            case "seen":
                presence.seen(pod, connection, now)
            case "closed":
                presence.closed(connection, now)
            case "opened":
                presence.opened(connection)
            case "replaced":
                presence.replaced(connection)
            case _:
                presence.forget(pod)
        diary.write(what, pod, connection, now)
        gone = diary.gone(now)
        assert set(presence.step(now)) == gone
        for each in gone:
            diary.strike(each)
        assert presence._pods == {number: set(pods) for number in (1, 2, 3) if (pods := diary.on(number))}
