"""Servers under gunicorn's other workers, or with ours on the way that all of them have."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.running_server import RunningServer, running_gunicorn

OURS = 'import runpy\nglobals().update(runpy.run_path("gunicorn.conf.py"))\n'
BARE = 'import os\nbind = "127.0.0.1:" + os.environ["SIM_PORT"]\ncontrol_socket_disable = True\n'
THREADS = 8
WORKERS = {
    "without the fast path": OURS,
    "gevent": OURS + 'worker_class = "gevent"\n',
    "threads of gevent": OURS + f'worker_class = "gthread"\nthreads = {THREADS}\n',
    "sync": BARE,
    "gthread": BARE + f"threads = {THREADS}\n",
}
"""Configurations of gunicorn; the last two know nothing of ours."""


@contextmanager
def served_by(worker: str, folder: Path, **env: str) -> Iterator[RunningServer]:
    """A server of the model "m" with one of `WORKERS`, whose configuration is written to `folder`."""
    configuration = folder / "gunicorn.conf.py"
    configuration.write_text(WORKERS[worker])
    env = {"SIM_FAST_PATH": "false", "SIM_MODEL": "m", **env}
    with running_gunicorn("-c", str(configuration), env=env) as server:
        yield server
