"""Answers a chat without an extension, in forks of a process that has imported the core.

Importing the core and its libraries takes most of the time of a start, and is the same without any
extension. `python -m scripts.removal_chat` reads the path of a folder per line from stdin, and
writes an empty line to stdout when the chat has ended. A fork imports all extensions from
`FOLDER/app/extensions`, and writes what it prints to `FOLDER/stdout` and `FOLDER/stderr`.
"""

import gc
import os
import signal
import sys
from pathlib import Path

# What the fork needs in any case. `flask.testing` is the client.
import cachetools  # noqa: F401
import flask.testing  # noqa: F401

import app
from app.core.application import create_app
from app.core.settings import load

TIMEOUT_S = 50
EXTENSIONS = "app.extensions"


def answer_chat(folder: Path) -> None:
    """Serves a chat with the extensions in `folder`, and prints status and role."""
    app.__path__ = [str(folder / "app")]
    client = create_app(load(("--force-dummy-tokenizer",), {})).test_client()
    message = {"role": "user", "content": "Hello!"}
    answer = client.post("/v1/chat/completions", json={"messages": [message]})
    print(answer.status_code, answer.get_json()["choices"][0]["message"]["role"])


def redirect_output(folder: Path) -> None:
    """Sends the output of this process to files in `folder`."""
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        with (folder / name).open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())


def run() -> None:
    """Answers one chat per line until stdin ends."""
    imported = [name for name in sys.modules if name.startswith(EXTENSIONS)]
    if imported:
        sys.exit(f"the core imports extensions: {imported}")
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer.raw:
        folder = Path(line.decode().rstrip("\n"))
        process_id = os.fork()
        if process_id == 0:
            signal.alarm(TIMEOUT_S)
            redirect_output(folder)
            answer_chat(folder)
            sys.exit()
        os.waitpid(process_id, 0)
        print(flush=True)


if __name__ == "__main__":
    run()
