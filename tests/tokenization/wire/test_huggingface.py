"""Local tokenizers: what goes in comes out."""

import subprocess
import sys
from pathlib import Path

from tests.tokenization.test_huggingface import ROOT


def test_training_again_gives_the_shipped_files(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts/train_tokenizer.py"), "--output", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    shipped = ROOT / "app/text/data"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (shipped / name).read_bytes(), name


LONG_WORK = {
    "a long text": 'tokenizer.encode("word " * 400_000)',
    "a very long text": 'tokenizer.encode("word " * 1_000_000, add_special_tokens=True)',
    "a text without words": 'tokenizer.encode("abcdefghij" * 200_000)',
    "many texts": 'tokenizer.encode_many(["word " * 100] * 3_000)',
    "many messages": 'tokenizer.encode_chat([{"role": "user", "content": "Hello"}] * 100_000)',
    "many parts": 'tokenizer.encode_chat([{"role": "critic", "content": ["text"] * 100_000}])',
    "many tools": 'tokenizer.encode_chat(HELLO, ChatOptions(tools=[{"function": {"name": "f"}}] * 30_000))',
    "a large tool": "tokenizer.encode_chat(HELLO, ChatOptions(tools=[{str(n): [n] for n in range(50_000)}]))",
    "a text of many messages": 'tokenizer.render_chat([{"role": "user", "content": "Hello"}] * 100_000)',
    "many ids": "tokenizer.decode([500] * 1_000_000)",
    "many pieces": "tokenizer.pieces([500] * 1_000_000)",
    "many spellings": "tokenizer.token_strings([500] * 500_000)",
    "many single texts": "tokenizer.token_texts([500] * 500_000)",
}


def test_other_greenlets_run_while_much_is_done() -> None:
    program = """
import sys
from gevent import monkey; monkey.patch_all()
import gevent
from app.text import ChatOptions, default_tokenizer
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
