"""Datasets in a process as gunicorn makes it:

patched by gevent, and perhaps forked after the build.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.extensions.datasets.files import PROMPT, make_file, row
from tests.running_server import ROOT

PREAMBLE = """
from gevent import monkey
monkey.patch_all()
import os, sqlite3, sys
from pathlib import Path
from random import Random
import gevent
from app.extensions.datasets.dataset import Dataset
from app.core.text.huggingface import default_tokenizer

path, prompt = Path(sys.argv[1]), [1, 2, 3]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    others = [row([number, 5], [number] * (number % 50 + 1)) for number in range(500)]
    return make_file(tmp_path / "replies.sqlite3", [row(PROMPT, [70, 71]), *others])


def run(script: str, file: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::ResourceWarning",
            "-c",
            PREAMBLE + textwrap.dedent(script),
            str(file),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_other_greenlets_run_while_a_lookup_waits_for_a_locked_file(file: Path) -> None:
    """If the lookup held the event loop, the file would stay locked, and nothing would come back."""
    run(
        """
        dataset = Dataset(path, "llmd", False, default_tokenizer())
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        waiting = gevent.spawn(dataset.reply, prompt, (), 1, 5, Random(1))
        gevent.sleep(0.02)
        assert not waiting.ready()
        other.execute("ROLLBACK")
        other.close()
        assert waiting.get().ids == [70, 71]
        dataset.close()
        print("done")
        """,
        file,
    )


def test_concurrent_dataset_lookups_return_the_rows_of_their_prompts(
    file: Path,
) -> None:
    run(
        """
        def look_up(dataset, number, turns):
            for turn in range(turns):
                found = dataset.reply([number, 5], (), 1, 100, Random(turn))
                assert found.ids == [number] * (number % 50 + 1), found

        for in_memory in (False, True):
            dataset = Dataset(path, "llmd", in_memory, default_tokenizer())
            child = os.fork()
            found = dataset.reply(prompt, (), 1, 5, Random(1))
            assert found.ids == [70, 71]
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            greenlets = [gevent.spawn(look_up, dataset, number, 20) for number in range(100)]
            gevent.joinall(greenlets, raise_error=True)
            if in_memory:  # native threads share it, too
                pool = gevent.get_hub().threadpool
                threads = [pool.spawn(look_up, dataset, number, 200) for number in range(8)]
                gevent.joinall(threads, raise_error=True)
            dataset.close()
        print("done")
        """,
        file,
    )
