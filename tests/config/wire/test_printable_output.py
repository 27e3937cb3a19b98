"""What strangers write reaches the terminal escaped: files, and answers of servers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.forked_server import run_forked
from tests.http_server import Handler, serving

HOSTILE_SCRIPT = (
    'vllm serve "\x1b]0;pwn\x07\x1b[2J" --bad\x1b[2J-option 5 \\\n'
    "::error::forged --other-option 5 \\\n"
    '--unknown "$(echo \x9b2J)" --option-\u202egnorw 1\n'
)


def assert_is_harmless(output: str) -> None:
    assert not set("\x1b\x07\x9b\u202e\r") & set(output)


@pytest.mark.parametrize("format", ["text", "json", "sarif", "github"])
def test_check_escapes_the_text_of_files(format: str, tmp_path: Path) -> None:
    (tmp_path / "a%0A::b,c.sh").write_text(HOSTILE_SCRIPT, "utf-8")
    done = run_forked("check", "--format", format, str(tmp_path / "a%0A::b,c.sh"))
    assert done.returncode == 1, done.stderr
    assert_is_harmless(done.stdout + done.stderr)
    assert "\\u001b[2J-option" in done.stdout
    lines = done.stdout.splitlines()
    if format == "github":
        assert all(line.startswith(("::error file=", "::notice file=")) for line in lines)
        assert all("a%250A%3A%3Ab%2Cc.sh,line=" in line for line in lines)
    else:
        assert not any(line.lstrip().startswith("::") for line in lines)
    if format in ("json", "sarif"):
        json.loads(done.stdout)


@contextmanager
def answering(content: bytes) -> Iterator[str]:
    """The URL of a server that answers each GET request with `content`."""

    class Answer(Handler):
        def do_GET(self) -> None:
            self.reply(200, content)

    with serving(Answer) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>login \x1b[2J</html>", "is not in the text format of Prometheus"),
        (b'x{a="\xff"} 1\n', "is not in the text format of Prometheus"),
        (b"[" * 100_000, "is not in the text format of Prometheus"),
        (b"x 1\n", "has no metrics of vLLM"),
    ],
)
def test_study_prints_one_line_for_a_server_without_metrics(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    with answering(content) as url:
        words = ["study", "take", "--metrics", url, "--for", "3s", "--step", "1s"]
        done = run_forked(*words, "--out", str(tmp_path / "study"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {url}/metrics {reason}\n"
