"""Local tokenizers in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.core.tokenization.test_huggingface import ROOT
from tests.core.tokenization.test_loading import cached_repository


def test_repeated_training_reproduces_the_shipped_tokenizer_files(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "research/train_tokenizer.py"), "--output", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    shipped = ROOT / "app/core/text/data"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (shipped / name).read_bytes(), name


LONG_WORK = {
    "a very long text": 'tokenizer.encode("word " * 200_000, add_special_tokens=True)',
    "a text without words": 'tokenizer.encode("abcdefghij" * 100_000)',
    "many texts": 'tokenizer.encode_many(["word " * 100] * 1_500)',
    "many messages": 'tokenizer.encode_chat([{"role": "user", "content": "Hello"}] * 30_000)',
    "many parts": 'tokenizer.encode_chat([{"role": "critic", "content": ["text"] * 100_000}])',
    "many tools": 'tokenizer.encode_chat(HELLO, ChatOptions(tools=[{"function": {"name": "f"}}] * 15_000))',
    "a large tool": "tokenizer.encode_chat(HELLO, ChatOptions(tools=[{str(n): [n] for n in range(25_000)}]))",
    "a text of many messages": 'tokenizer.render_chat([{"role": "user", "content": "Hello"}] * 100_000)',
    "many ids": "tokenizer.decode([500] * 1_000_000)",
    "many pieces": "tokenizer.pieces([500] * 1_000_000)",
}


def test_other_greenlets_run_during_long_tokenization() -> None:
    program = """
import sys
from gevent import monkey; monkey.patch_all()
import gevent
from app.core.text.base import ChatOptions
from app.core.text.huggingface import default_tokenizer
tokenizer, ticks, HELLO = default_tokenizer(), [], [{"role": "user", "content": "Hello"}]
def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.001)
gevent.spawn(tick)
for work in sys.argv[1:]:
    gevent.sleep(0.002)
    before = len(ticks)
    eval(work)
    print(len(ticks) - before)
"""
    command = [sys.executable, "-c", program, *LONG_WORK.values()]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT, text=True)
    ticks = dict(zip(LONG_WORK, map(int, done.stdout.split()), strict=True))
    assert {name: count for name, count in ticks.items() if count < 8} == {}


PROGRAM = """
import logging
from app.core.text.base import TokenizerLoadError
from app.core.text.huggingface import load_tokenizer
from config.settings import TokenizerSettings
logging.basicConfig(format="%(levelname)s %(message)s")
print(load_tokenizer("somebody/small").name)
print(load_tokenizer("x", TokenizerSettings(tokenizer="somebody/small")).name)
print(load_tokenizer("nobody/nothing").name)
for name in ("nobody/nothing", "no name at all", "somebody/without"):
    try:
        load_tokenizer("x", TokenizerSettings(tokenizer=name))
    except TokenizerLoadError as error:
        print("stopped:", error)
"""


def test_offline_mode_uses_only_the_cache(tmp_path: Path) -> None:
    cached_repository(tmp_path / "hub", "somebody/small")
    (cached_repository(tmp_path / "hub", "somebody/without") / "tokenizer.json").unlink()
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[:3] == ["somebody/small", "somebody/small", "embedded"]
    stopped = ["nobody/nothing", "no name at all", "somebody/without"]
    assert [line.split(" was not found")[0] for line in lines[3:]] == [
        f"stopped: {name}" for name in stopped
    ]
    assert done.stderr.count("WARNING") == len(done.stderr.splitlines()) == 1


def test_hub_library_is_not_imported_for_a_model_name_without_a_repository() -> None:
    program = (
        "import sys; from app.core.text.huggingface import load_tokenizer; load_tokenizer('m')"
    )
    program += "; assert 'huggingface_hub' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
