"""Which tokenizer is loaded, and what happens when it is not there."""

import os
import subprocess
import sys
from pathlib import Path

from tests.tokenization.test_loading import cached_repository

ROOT = Path(__file__).parents[3]


PROGRAM = """
import logging
from app.text import TokenizerLoadError, load_tokenizer
logging.basicConfig(format="%(levelname)s %(message)s")
print(load_tokenizer(model="somebody/small").name)
print(load_tokenizer(model="x", tokenizer="somebody/small", explicit=True).name)
print(load_tokenizer(model="nobody/nothing").name)
for name in ("nobody/nothing", "no name at all", "somebody/without"):
    try:
        load_tokenizer(model="x", tokenizer=name, explicit=True)
    except TokenizerLoadError as error:
        print("stopped:", error)
"""


def test_offline_only_the_cache_is_asked(tmp_path: Path) -> None:
    cached_repository(tmp_path / "hub", "somebody/small")
    (cached_repository(tmp_path / "hub", "somebody/without") / "tokenizer.json").unlink()
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:3] == ["somebody/small", "somebody/small", "embedded"]
    assert [line.split(" is neither")[0] for line in lines[3:]] == [
        "stopped: nobody/nothing",
        "stopped: no name at all",
        "stopped: somebody/without",
    ]
    assert done.stderr.count("WARNING") == len(done.stderr.splitlines()) == 1


def test_the_hub_library_is_not_imported_for_nothing() -> None:
    program = """
import sys
from app.text import load_tokenizer
load_tokenizer(model="m")
print("huggingface_hub" in sys.modules)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
