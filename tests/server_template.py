"""A process that has imported the server, and forks a server for each request.

A start of `python -m app` imports the server's modules twice: to check the settings, and again
after it has become gunicorn. That takes most of the time of a start. A forked server parses its
command line and runs gunicorn in the same way, in a session of its own, without these imports.

`python -m tests.server_template` reads a JSON object per line from stdin, and writes one per line
to stdout: `{"module", "words", "env", "log"}` starts a server and returns its `pid`; `{"ended"}`
returns the `status` of an ended one. It ends with its stdin.
"""

import gc
import json
import os
import signal
import sys
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import NoReturn

from gevent import monkey
from gunicorn.app import wsgiapp

# As gunicorn.conf.py, which patches again without an effect, and like it after gunicorn's imports.
entry_points = metadata.entry_points
metadata.entry_points = entry_points().select
monkey.patch_all()
metadata.entry_points = entry_points

from app import entrypoint  # noqa: E402
from app.core import cli  # noqa: E402
from app.core.built_in import present_extensions  # noqa: E402

fork = monkey.get_original("os", "fork")
"""Without gevent's watchers: this process has no event loop."""
MODULES = (
    "app.core.application",
    "app.core.assembly.server",
    "app.core.server.gunicorn.arbiter",
    "app.core.server.gunicorn.logs",
    "app.core.server.gunicorn.ranks",
    "app.core.server.gunicorn.startup_log",
    "app.core.server.gunicorn.worker",
    "app.core.text.huggingface",
)
"""Modules that every server imports."""


def become_gunicorn(program: str, words: list[str]) -> NoReturn:
    """Runs `python -m gunicorn` in this process, where `os.execv` would replace it."""
    spec = find_spec("gunicorn.__main__")
    assert spec is not None and spec.origin is not None and words[1:3] == ["-m", "gunicorn"]
    sys.argv = [spec.origin, *words[3:]]
    sys.orig_argv = words  # the arbiter starts a successor with them
    wsgiapp.run(prog="gunicorn")
    sys.exit()


def run_gunicorn(words: list[str]) -> NoReturn:
    """Runs `python -m gunicorn` with `words`."""
    become_gunicorn(sys.executable, [sys.executable, "-m", "gunicorn", *words])


MAINS = {"app": cli.main, "app.entrypoint": entrypoint.run, "gunicorn": run_gunicorn}


def serve(module: str, words: list[str], env: dict[str, str], log: str) -> NoReturn:
    """Turns this fork into `python -m module words`, whose output goes to the file `log`."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 100)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.execv = become_gunicorn  # type: ignore[assignment]
    sys.exit(MAINS[module](words))


def run() -> None:
    """Answers requests until stdin ends."""
    for module in MODULES:
        import_module(module)
    present_extensions()
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer.raw:
        request = json.loads(line)
        if "ended" in request:
            _, status = os.waitpid(request["ended"], 0)
            answer = {"status": os.waitstatus_to_exitcode(status)}
        else:
            pid = fork()
            if not pid:
                serve(**request)
            answer = {"pid": pid}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run()
