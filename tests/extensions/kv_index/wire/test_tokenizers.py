"""A load of a tokenizer that hangs blocks neither the server nor its end."""

import subprocess
import sys

import pytest

from tests.extensions.kv_index.test_tokenizers import PATIENCE_S
from tests.running_server import ROOT

HANGING = """
import sys
from pathlib import Path
from gevent import monkey
if sys.argv[1] == "patched":
    monkey.patch_all()
import gevent
from app.core.text.base import TokenizerError
from app.core.text.huggingface import default_tokenizer
from app.extensions.kv_index.tokenizers import TokenizerLibrary, TokenizerSources

embedded = default_tokenizer()  # before the time limit: a busy machine takes long to load it
hang = monkey.get_original("threading", "Lock")()
hang.acquire()
def load(source):
    if source == "hangs":
        hang.acquire()  # a library that blocks its native thread, event loop or not
    return embedded

by_model = {"hangs": "hangs", "good": "good"}
sources = TokenizerSources(by_model=by_model, folder=Path("nowhere"))
library = TokenizerLibrary(load, sources, timeout_s=2)
def ask(model):
    try:
        return library.get(model).name
    except TokenizerError as error:
        return str(error)

greenlets = [gevent.spawn(ask, name) for name in ("hangs", "hangs", "nobody", "good")]
gevent.joinall(greenlets)
for greenlet in greenlets:
    print(greenlet.value)
"""


@pytest.mark.parametrize("how", ["patched", "plain"])
def test_hanging_tokenizer_load_does_not_block_other_requests(
    how: str,
) -> None:
    command = [sys.executable, "-c", HANGING, how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    too_late = "The tokenizer for the model `hangs` was not loaded within 2 s."
    unknown = "There is no tokenizer for the model `nobody`."
    assert done.stdout.splitlines() == [too_late, too_late, unknown, "embedded"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")
