"""Hostile recordings and fixtures: commands raise at most ConfigError."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from app.extensions.recording import fork, to_script
from app.extensions.recording.exchange import line_of
from app.extensions.recording.lines import recorded
from config import ConfigError
from tests.drawn import drawn_examples
from tests.extensions.recording.recordings import HEADER, chat, exchange
from tests.hostile_data import hostile_contents
from workbench.imports import command

STREAM = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}\n\ndata: [DONE]\n\n'
RECORDING = HEADER + line_of(exchange(chat("Hello"), (0.1, STREAM)))
AIMOCK = b'{"fixtures": [{"match": {"userMessage": "a"}, "response": {"content": "b"}}]}'
VCR = b"""\
interactions:
- request:
    method: POST
    uri: https://api.openai.com/v1/chat/completions
    body: '{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}'
  response:
    status: {code: 200}
    headers: {content-type: [application/json]}
    body: {string: '{"choices": [{"message": {"role": "assistant", "content": "Hello"}}]}'}
version: 1
"""


def run_command(words: list[str]) -> None:
    """Runs a command; a usage error is an exit, which needs no traceback."""
    if words[0] == "fork":
        fork.run(words[1:])
    elif words[0] == "from-recording":
        to_script.run(words)
    elif words[0] == "import":
        command.run(words)
    else:
        list(recorded(words[1]))


@pytest.mark.parametrize(
    ("words", "name", "good"),
    [
        (["read", "FILE"], "file", RECORDING),
        (["from-recording", "FILE"], "file", RECORDING),
        (["fork", "FILE", "--turns", "1", "--out", "OUT"], "file", RECORDING),
        (["import", "FILE"], "file.json", AIMOCK),
        (["import", "FILE"], "file.yaml", VCR),
    ],
)
@drawn_examples(60, suppressed=list(HealthCheck))
@given(data=st.data())
def test_hostile_file_raises_at_most_a_config_error(
    words: list[str],
    name: str,
    good: bytes,
    data: st.DataObject,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = data.draw(hostile_contents(good) | hostile_contents(good).map(HEADER.__add__))
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        places = {"FILE": str(path), "OUT": str(Path(folder, "out"))}
        try:
            run_command([places.get(word, word) for word in words])
        except ConfigError as error:
            assert "\n" not in str(error)
    assert "Traceback" not in capsys.readouterr().err
