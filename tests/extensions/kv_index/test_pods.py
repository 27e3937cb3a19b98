"""Where pods publish, what their topics call them, and which of them are still there."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.extensions.kv_index.messages import MAX_TOPIC_BYTES, Topic, parse_topic
from app.extensions.kv_index.pods import (
    DnsSource,
    FileSource,
    PodEndpoint,
    TargetSource,
    parse_target,
    resolve_host,
    target_sources,
)
from app.extensions.kv_index.presence import PodTracker


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
        ("é" * (MAX_TOPIC_BYTES // 2), Topic("é" * (MAX_TOPIC_BYTES // 2), None, False)),
    ],
)
def test_topic_names_a_pod_and_optionally_its_model(topic: str, named: Topic) -> None:
    assert parse_topic(topic.encode()) == named


@pytest.mark.parametrize(
    "topic", [b"", b"kv@", b"kv@@m", b"\xff", b"a\nb", b"kv@a\0@m", b"x" * (MAX_TOPIC_BYTES + 1)]
)
def test_topic_in_an_invalid_format_names_no_pod(topic: bytes) -> None:
    assert parse_topic(topic) is None


def now(source: TargetSource) -> Sequence[PodEndpoint]:
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
def test_scheme_and_options_of_a_pod_address_are_optional(text: str, target: PodEndpoint) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":5", "h:0", "h:99999", "h:x", "h:１", "http://h:1", "h:1;x=y", "h:1;pod=",
     "h:1;replay=h", "ipc://", "h:1;pod", "dns://h", "dns://h:0", "dns://h:1;x=y", "dns://:1", "dns://"],
)  # fmt: skip
def test_invalid_pod_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        target_sources([text])


def test_changed_pod_list_file_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pods"
    source = FileSource(path)
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


def test_host_name_resolves_to_all_its_addresses(caplog: pytest.LogCaptureFixture) -> None:
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

    source = DnsSource(parse_target("pods.example:5557;replay=tcp://pods.example:5558"), resolve)
    endpoints = [
        PodEndpoint("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"),
        PodEndpoint("tcp://[fd00::1]:5557", "tcp://[fd00::1]:5558"),
    ]
    assert now(source) == endpoints == now(source) == now(source)
    assert len(caplog.records) == 1
    assert [target.endpoint for target in now(source)] == ["tcp://10.0.0.2:5557"]
    assert now(source) == []
    assert "pods.example has no addresses, or is unknown" in caplog.text


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
def test_options_of_a_host_name_apply_to_the_resolved_addresses(
    options: str, replay: str | None, pod: str | None, model: str | None
) -> None:
    (source,) = target_sources([f"dns://127.0.0.1:7{options}"])
    assert now(source) == [PodEndpoint("tcp://127.0.0.1:7", replay, pod, model)]


def test_pod_name_that_resolves_to_several_addresses_logs_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = parse_target("pods.example:1;pod=a")
    two_addresses = {"pods.example": ["10.0.0.1", "10.0.0.2"]}
    source = DnsSource(target, two_addresses.__getitem__)
    assert [target.name for target in now(source)] == ["a", "a"] and now(source)
    assert len(caplog.records) == 1 and "several pods with the same name a" in caplog.text
    one_address = {"pods.example": ["10.0.0.1"]}
    source = DnsSource(target, one_address.__getitem__)
    assert [target.name for target in now(source)] == ["a"] and len(caplog.records) == 1


def test_unknown_host_has_no_address_but_temporary_failures_are_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "127.0.0.1" in resolve_host("127.0.0.1")
    for error, is_permanent in ((socket.EAI_NONAME, True), (socket.EAI_AGAIN, False)):

        def fail(*args: object, code: int = error, **options: object) -> None:
            raise socket.gaierror(code, "no")

        monkeypatch.setattr("app.extensions.kv_index.pods.getaddrinfo", fail)
        if is_permanent:
            assert resolve_host("x") == []
        else:
            with pytest.raises(OSError):
                resolve_host("x")


def test_pod_sources_may_be_addresses_files_or_host_names(tmp_path: Path) -> None:
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


def test_pod_expires_a_fixed_time_after_its_latest_connection_is_closed() -> None:
    tracker = PodTracker(10)
    for pod in "abcd":
        tracker.record_message(pod, 1, 0)
    tracker.record_close(1, 5)
    tracker.record_close(1, 7)  # the first counts
    tracker.record_message("a", 2, 6)
    tracker.forget("b")
    assert tracker.pop_expired(14.9) == [] and tracker.pop_expired(15) == ["c", "d"]
    tracker.record_message("c", 1, 20)  # what had been read before the connection closed
    tracker.record_open(1)
    assert tracker.pop_expired(99) == []
    tracker.record_close(1, 100)
    tracker.record_reuse(1)  # another pod has the number now
    tracker.record_message("e", 1, 101)
    tracker.record_open(1)
    assert tracker.pop_expired(110) == ["c"] and tracker.pop_expired(1000) == []
