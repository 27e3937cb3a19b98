"""Whom a topic names."""

from __future__ import annotations

import pytest

from app.kvindex.pods import MOST_NAME_BYTES, Topic, parse_topic


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
