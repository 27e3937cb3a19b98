"""A process that has imported the server, and forks a server for each request.

A start of `python -m app` imports the server's modules twice: to check the settings, and again
after it has become gunicorn. That takes most of the time of a start. A forked server parses its
command line and runs gunicorn in the same way, in a session of its own, without these imports.

`python -m tests.server_template` reads a JSON object per line from stdin, and writes one per line
to stdout: `{"module", "words", "env", "cwd", "stdout", "stderr"}` starts a server or another
command and returns its `pid`; `{"ended"}` returns the `status` of an ended one. It ends with its
stdin.
"""

import gc
import json
import os
import signal
import sys
import time
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import NoReturn

from tests.fork_exit import ForkExit

# Before other modules register handlers: the handler that is registered first runs last.
FORK_EXIT = ForkExit()

# isort: split
from gevent import monkey  # noqa: E402
from gunicorn import arbiter  # noqa: E402
from gunicorn.app import wsgiapp  # noqa: E402

# As gunicorn.conf.py, which patches again without an effect, and like it after gunicorn's imports.
entry_points = metadata.entry_points
metadata.entry_points = entry_points().select
monkey.patch_all()
# gunicorn.conf.py reads them again, from the files of all packages.
metadata.entry_points = cache(entry_points)

from app import entrypoint  # noqa: E402
from app.core import cli  # noqa: E402
from app.core.application import create_app  # noqa: E402
from app.core.built_in import present_extensions  # noqa: E402
from app.core.settings import load  # noqa: E402

fork = monkey.get_original("os", "fork")
"""Without gevent's watchers: this process has no event loop."""
MAX_SLEEP_S = 0.01
MODULES = (
    "app.core.server.gunicorn.arbiter",
    "app.core.server.gunicorn.drain",
    "app.core.server.gunicorn.ending",
    "app.core.server.gunicorn.ignored_options",
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


def serve(
    *, module: str, words: list[str], env: dict[str, str], cwd: str, stdout: str, stderr: str
) -> NoReturn:
    """Turns this fork into `python -m module words`, in the folder `cwd`.

    Its output goes to the files `stdout` and `stderr`.
    """
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(stdout, os.O_WRONLY | os.O_APPEND)
    errors = os.open(stderr, os.O_WRONLY | os.O_APPEND)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, 100)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.execv = become_gunicorn  # type: ignore[assignment]
    try:
        sys.exit(MAINS[module](words))
    except SystemExit as end:
        if end.code is None:
            FORK_EXIT.status = 0
        elif isinstance(end.code, int):
            FORK_EXIT.status = end.code
        else:  # a message, which the interpreter prints before the handlers run
            FORK_EXIT.status = 1
        raise


class BriefSleeps:
    """The module `time` as gunicorn's arbiter sees it: no sleep is longer than `MAX_SLEEP_S`.

    The arbiter sleeps after the start of each worker, and 0.1 s between two looks at those that
    end: three quarters of the life of a server without requests.
    """

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleeps `seconds`, at most `MAX_SLEEP_S`."""
        time.sleep(min(seconds, MAX_SLEEP_S))


def run() -> None:
    """Answers requests until stdin ends."""
    arbiter.time = BriefSleeps()  # type: ignore[assignment]
    for module in MODULES:
        import_module(module)
    present_extensions()
    # Imports what every server imports for its application.
    create_app(load((), {}))
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
