"""Transcripts of `curl -v` become scripts."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.cli import main
from tests.extensions.recording.recordings import chat
from tests.workbench.imports.test_imported_logs import ANSWER, client_of, losses_of
from tests.workbench.imports.test_imported_scripts import COMMAND, reply, text
from workbench.imports.curl_command import read_command

BODY = json.dumps(chat("it's"))
URL = "http://h:8000/v1/chat/completions"
SENT = "*   Trying 127.0.0.1:8000...\n> POST /v1/chat/completions HTTP/1.1\n> Host: h:8000\n>\n"
RECEIVED = f"""\
* upload completely sent off: 93 bytes
< HTTP/1.1 200 OK
< content-type: application/json
<
{json.dumps(ANSWER)}"""
LEFT = "* Connection #0 to host h left intact\n"
QUOTED = BODY.replace("'", "'\\''")
ESCAPED = BODY.replace('"', '\\"')


@pytest.mark.parametrize(
    "command",
    [
        f"$ curl -v {URL} \\\n    -H 'Content-Type: application/json' \\\n    -d '{QUOTED}'\n",
        f"user@host:~$ curl -sSNv {URL} --data-raw '{QUOTED}' | jq .\n",
        f'PS C:\\> curl.exe -v {URL} `\n  -d "{ESCAPED}"\n',
        f'C:\\>curl -v {URL} ^\n  --json "{ESCAPED}"\n'.replace("C:\\>", "C:\\> "),
        f"curl -v -XPOST -d'{QUOTED}' {URL} 2>&1\n",
        f"$ curl -v $BASE/v1/chat/completions -d @- <<'END'\n{BODY}\nEND\n",
        "$ curl -v " + URL + " -d $'" + BODY.replace("'", "\\u0027") + "'\n",
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_command_and_its_answer_become_a_rule(tmp_path: Path, command: str, line_end: str) -> None:
    transcript = (command + SENT + RECEIVED + LEFT + "$ ls\n").replace("\n", line_end)
    client = client_of(tmp_path, transcript)
    assert text(client, "it's") == "B"


def test_indented_body_is_read_below_the_meter_of_the_progress(tmp_path: Path) -> None:
    body = json.dumps(chat("A"), indent=2)
    meter = "100   451  100   345  100   106    100     31  0:00:03  0:00:03 --:--:--   132"
    answer = json.dumps(ANSWER, indent=2)
    transcript = f"$ curl -v {URL} -d '{body}'\n{SENT}{RECEIVED.partition('{')[0]}{meter}{answer}\n"
    assert text(client_of(tmp_path, transcript), "A") == "B"


def test_stream_after_an_interim_status_becomes_a_rule(tmp_path: Path) -> None:
    events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in "BC"]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    transcript = (
        f"$ curl -Nv {URL} -d '{json.dumps(chat('A'))}'\n{SENT}< HTTP/1.1 100 Continue\n<\n"
        f"< HTTP/2 200 \n< content-type: text/event-stream\n< \n{stream}{LEFT}"
    )
    assert text(client_of(tmp_path, transcript), "A") == "BC"


def test_each_answer_of_a_session_becomes_a_rule(tmp_path: Path) -> None:
    parts: list[str] = []
    for question in ("A", "C"):
        parts.append(f"$ curl -v {URL} -d '{json.dumps(chat(question))}'\n{SENT}{RECEIVED}{LEFT}")
    error = '{"error": {"message": "Later"}}'
    parts.append(
        f"$ curl -v {URL} -d '{json.dumps(chat('E'))}'\n{SENT}< HTTP/1.1 429 \n<\n{error}\n{LEFT}"
    )
    client = client_of(tmp_path, "".join(parts))
    assert text(client, "A") == text(client, "C") == "B"
    assert reply(client, "E") == 429


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("", "the transcript has no body of the request: curl -v does not print it"),
        (f"$ curl -v {URL} -d @body.json\n", "the body of the request is in body.json"),
        (f"$ curl -v {URL} -d '{{\n", "the request has no body"),
    ],
)
def test_answer_without_the_body_of_its_request_is_listed(
    tmp_path: Path, command: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(command + SENT + RECEIVED)
    assert main([*COMMAND, str(log)]) == 1
    assert losses_of(capsys)[0].startswith(f"answer 1: left out: {reason}")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_any_body_in_single_quotes_is_read(body: str) -> None:
    quoted = body.replace("'", "'\\''")
    if body.startswith("@"):
        quoted = f" {quoted}"
        body = f" {body}"
    text = f"curl -d '{quoted}' {URL}\nrest"
    command, end = read_command(text, 0)
    assert (command.body, command.url, command.method) == (body, URL, "POST")
    assert text[end:] == "rest"


@given(st.text(st.sampled_from("curl -d'\"\\$^`<E@\n|")))
def test_any_text_has_a_command_that_ends_within_it(text: str) -> None:
    _, end = read_command(text, 0)
    assert 0 <= end <= len(text) + 1
