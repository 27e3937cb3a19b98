"""Scripts that are made of recordings: a server accepts them, and replies as recorded."""

from pathlib import Path

from app import create_app
from app.core.cli import main
from app.core.settings import load
from app.extensions.scripts.template import Template
from tests.extensions.recording.recordings import CHAT, chat, exchange, written
from tests.extensions.recording.test_script import (
    COMMAND,
    TOOLS,
    choice,
    delta,
    rules_of,
    stream,
    whole,
)


def test_recorded_template_syntax_is_reproduced_literally() -> None:
    text = "{{ 'a\\b\n\r\t' }}{% raw %}ü漢" * 200
    [rule] = rules_of(whole(chat("Hi"), choice(content=text)))
    assert Template(rule["then"]["text"]).text({}) == text


def test_written_script_passes_the_script_check(tmp_path: Path) -> None:
    recording = written(tmp_path / "r", [whole(chat("Hi\nthere: [ü]"), choice(content="{% A"))])
    script = str(tmp_path / "s.yaml")
    assert main([*COMMAND, recording, "--out", script]) == 0
    assert main(["script", "check", script]) == 0


def test_script_reproduces_the_recorded_replies(tmp_path: Path) -> None:
    body = chat("How is the weather?", tools=TOOLS)
    recorded = [
        exchange(body, *stream(delta(content="Let me "), delta(content="{% look."), gap_s=0.001)),
        whole(
            chat("Hi"), {"error": {"message": "Slow down", "type": "RateLimitError"}}, status=429
        ),
    ]
    path = tmp_path / "s.yaml"
    assert main([*COMMAND, written(tmp_path / "r", recorded), "--out", str(path)]) == 0
    server = create_app(
        load(["--force-dummy-tokenizer", "--model=m", "--script", str(path)], {})
    ).test_client()
    answer = server.post(CHAT, json=body).get_json()
    assert answer["choices"][0]["message"]["content"] == "Let me {% look."
    refused = server.post(CHAT, json=chat("Hi"))
    assert (refused.status_code, refused.get_json()["error"]["message"]) == (429, "Slow down")


def test_runtime_rule_answers_a_request_missing_from_the_recording(tmp_path: Path) -> None:
    recording = written(tmp_path / "r", [whole(chat("Hi"), choice(content="recorded"))])
    flags = ["--force-dummy-tokenizer", "--model=m", f"--replay={recording}"]
    app = create_app(load([*flags, "--replay-miss=not-found"], {}))
    client = app.test_client()

    def reply(text: str, scope: str = "") -> tuple[int, str]:
        headers = {"X-Understudy-Scope": scope}
        answer = client.post(CHAT, json=chat(text), headers=headers)
        return answer.status_code, answer.get_data(as_text=True)

    rule = {"when": {"message": "Bye"}, "then": {"text": "from the test"}}
    client.post("/admin/script/rules?scope=one", json=rule)
    status, body = reply("Bye", "one")
    assert (status, "from the test" in body) == (200, True)
    status, body = reply("Hi", "one")
    assert (status, "recorded" in body) == (200, True)
    for text, scope in (("Other", "one"), ("Bye", "two")):
        status, body = reply(text, scope)
        assert (status, "The recording does not contain a response" in body) == (404, True)
    assert client.post("/v1/unknown", headers={"X-Understudy-Scope": "one"}).status_code == 404
    app.end()
