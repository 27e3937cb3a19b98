"""Replay of an agent's session by turns, and `fork`, which cuts it."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from app import create_app
from app.core.cli import main
from app.core.settings import load
from app.extensions.recording.exchange import Exchange, bytes_of
from app.extensions.recording.library import Recording
from app.extensions.recording.lines import recorded
from tests.extensions.recording.recordings import CHAT, chat, exchange, written
from tests.extensions.recording.test_script import TOOLS, choice, whole

CALLS = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
AGENT = "agent/1.2"
Serve = Callable[..., Any]
"""Starts a server that replays a recording, with flags, and returns its client."""


def step(replies: int, date: str = "today", **fields: Any) -> dict[str, Any]:
    """A request of an agent after this number of replies, with a date that always differs."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": date}]
    messages.append({"role": "user", "content": f"Work in /tmp/{date}"})
    for _ in range(replies):
        messages.append({"role": "assistant", "tool_calls": CALLS})
        messages.append({"role": "tool", "tool_call_id": "c1", "content": date})
    return {"model": "m", "messages": messages, "tools": TOOLS, **fields}


def session() -> list[Exchange]:
    title = chat("A title, please")
    texts = ("one", "two", "three")
    steps = [whole(step(number), choice(content=text)) for number, text in enumerate(texts)]
    return [whole(title, choice(content="title")), *steps]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return written(tmp_path / "session.jsonl", session())


@pytest.fixture
def served() -> Iterator[Serve]:
    """Starts servers that replay a recording, in this process; they close it at the end."""
    with ExitStack() as applications:

        def serve(recording: str, *flags: str) -> Any:
            words = ["--force-dummy-tokenizer", "--model=m", "--replay", recording, *flags]
            app = create_app(load([*words, "--replay-by", "turn"], {}))
            applications.callback(app.end)
            return app.test_client()

        yield serve


def text(client: Any, body: dict[str, Any], **headers: str) -> Any:
    answer = client.post(CHAT, json=body, headers=headers)
    if answer.status_code != 200:
        return answer.status_code
    return answer.get_json()["choices"][0]["message"]["content"]


def test_replay_by_turn_selects_the_response_by_the_number_of_replies(
    file: str, served: Serve
) -> None:
    client = served(file, "--replay-miss", "not-found")
    assert [text(client, step(number, "tomorrow")) for number in (2, 0, 1)] == [
        "three",
        "one",
        "two",
    ]
    assert text(client, chat("Another title")) == "title"
    assert text(client, step(3)) == 404
    assert text(client, step(0, stream=True)) == 404


def test_consecutive_assistant_messages_count_as_one_turn(file: str, served: Serve) -> None:
    body = step(1)
    body["messages"].insert(2, {"role": "assistant", "content": "Let me look."})
    assert text(served(file), body) == "two"


def test_replay_by_turn_has_no_response_to_a_malformed_conversation(
    file: str, served: Serve
) -> None:
    with closing(Recording(file, by_turn=True)) as recording:
        assert len(recording) == 4
    client = served(file, "--replay-miss", "not-found")
    answer = client.post(CHAT, json={"model": "m", "messages": [1, 2]})
    assert answer.status_code == 404


def test_script_answers_the_turns_after_the_end_of_a_fork(
    file: str, tmp_path: Path, served: Serve
) -> None:
    out = tmp_path / "fork.jsonl"
    script = tmp_path / "s.yaml"
    script.write_text("rules:\n- then: {text: another way}\n")
    assert main(["fork", file, "--turns", "2", "--out", str(out)]) == 0
    client = served(str(out), "--script", str(script))
    assert [text(client, step(number)) for number in range(4)] == [
        "one",
        "two",
        "another way",
        "another way",
    ]


def test_fork_without_prompts_still_replays_the_recorded_replies(
    file: str, tmp_path: Path, served: Serve
) -> None:
    out = tmp_path / "fork.jsonl"
    assert main(["fork", file, "--without-prompts", "--out", str(out)]) == 0
    assert "today" not in out.read_text()
    client = served(str(out))
    assert [text(client, step(number)) for number in range(3)] == ["one", "two", "three"]


@pytest.mark.parametrize("tools", [5, "x", {"a": 1}, [None, "x", {"function": "x"}, {"type": "t"}]])
def test_fork_without_prompts_keeps_requests_with_malformed_tools(
    tools: object, tmp_path: Path
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "secret"}], "tools": tools}
    file = written(tmp_path / "r", [exchange(body, (0.1, b"{}"))])
    out = tmp_path / "fork.jsonl"
    assert main(["fork", file, "--without-prompts", "--out", str(out)]) == 0
    [(_, copy)] = recorded(str(out))
    shortened = json.loads(bytes_of(copy.request.body))
    assert all(isinstance(tool["name"], str) for tool in shortened["tools"])


def test_fork_without_prompts_removes_request_fields_from_events(
    tmp_path: Path,
) -> None:
    response = {"object": "response", "instructions": "secret", "tools": TOOLS, "output": []}
    event = json.dumps({"type": "response.created", "response": response}).encode()
    body = b"event: response.created\ndata: " + event + b"\n\ndata: [DONE]\n\n"
    request = {"model": "m", "input": "secret", "instructions": "secret", "stream": True}
    halves = ((0.1, body[:40]), (0.2, body[40:]))
    file = written(tmp_path / "r", [exchange(request, *halves, target="/v1/responses")])
    out = tmp_path / "fork.jsonl"
    assert main(["fork", file, "--without-prompts", "--out", str(out)]) == 0
    [(_, copy)] = recorded(str(out))
    assert "secret" not in out.read_text()
    events = copy.answer.body().split(b"\n\n")
    data = json.loads(events[0].partition(b"data: ")[2])
    assert data["response"] == {**response, "instructions": None, "tools": []}
    assert events[1:] == [b"data: [DONE]", b""]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--turns", "0"], "--turns: must be a positive whole number, got '0'"),
        (["--turns", "-x"], "--turns"),
        (["--turns", "1.5"], "--turns: must be a positive whole number, got '1.5'"),
        (["--out", "/missing/fork"], "cannot be written"),
    ],
)
def test_invalid_fork_is_reported_in_one_line(
    file: str, tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = [] if "--out" in flags else ["--out", str(tmp_path / "new")]
    assert main(["fork", file, *flags, *out]) != 0
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def of_an_agent(tmp_path: Path) -> Iterator[str]:
    [first, *_] = session()[1:]
    request = first.request
    headers = [*request.headers, ("User-Agent", f"{AGENT} (linux)")]
    named = type(request)(request.method, request.target, headers, request.body)
    yield written(tmp_path / "agent.jsonl", [Exchange(0.0, named, first.answer)])


def test_changed_agent_version_is_logged_once(
    of_an_agent: str, caplog: pytest.LogCaptureFixture, served: Serve
) -> None:
    client = served(of_an_agent)
    with caplog.at_level(logging.WARNING):
        for agent in (AGENT, "agent/1.3 (linux)", "agent/1.3 (linux)", "curl/8", "no version"):
            assert text(client, step(0), **{"User-Agent": agent}) == "one"
    lines = [record.getMessage() for record in caplog.records if "was recorded" in record.msg]
    assert lines == [
        f"{of_an_agent} was recorded with {AGENT}, but the client is agent/1.3; "
        "if the client does not understand the replies, record the session again"
    ]


def test_replay_by_turn_and_nearest_match_cannot_be_combined(file: str) -> None:
    with pytest.raises(ValueError, match="cannot be combined"):
        load(["--replay", file, "--replay-by", "turn", "--replay-miss", "nearest"], {})
