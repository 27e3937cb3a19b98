"""Prompts that were encoded before are remembered, within a limit of memory."""

import gc
import json
import tracemalloc

import pytest

from app.core.text.huggingface import default_tokenizer
from app.core.text.memo import PromptMemo, chat_memo, text_memo

TOKENIZER = default_tokenizer()
CHAT = b'[{"role": "user", "content": "Who comes again?"}]'


def test_the_least_recently_used_prompt_is_dropped() -> None:
    asked: list[bytes] = []

    def encode(key: bytes) -> list[int]:
        asked.append(key)
        return TOKENIZER.encode(key.decode())

    known = PromptMemo(encode, limit_bytes=10_000)
    for number in range(1_000):
        for text in (str(number), str(number), "first"):
            assert known.ids(text.encode()) == TOKENIZER.encode(text)
        assert known.size_bytes <= known.limit_bytes
    asked.clear()
    assert known.ids(b"first") and known.ids(b"999") and not asked
    assert known.ids(b"1") and asked == [b"1"]


def test_the_size_equals_the_entries() -> None:
    known = PromptMemo(lambda key: [1_000 * len(key) + k for k in range(hash(key) % 60)], 1 << 18)
    tracemalloc.start()
    try:
        for number in range(1_500):
            for _ in range(2):
                known.ids(f"[{number}, the prompt of a chat]".encode())
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.9 * known.limit_bytes < known.size_bytes <= known.limit_bytes
    assert 0.9 * held_bytes < known.size_bytes < 1.2 * held_bytes


def test_a_prompt_is_remembered_from_its_second_use() -> None:
    text = "Who comes again?"
    for known, key, expected in (
        (text_memo(TOKENIZER), text.encode(), TOKENIZER.encode(text, True)),
        (chat_memo(TOKENIZER), CHAT, TOKENIZER.encode_chat(json.loads(CHAT))),
    ):
        assert known.ids(key) == expected
        assert known.size_bytes == 0, "most prompts never come again"
        assert known.ids(key) == expected
        assert known.size_bytes > 0
        assert known.ids(key) is known.ids(key)


@pytest.mark.parametrize(
    "key",
    [
        b'[{"role": "tool", "content": "x"}]',
        b'[{"role": "user", "content": "x", "name": "Ann"}]',
        b'[{"role": "user", "content": [{"type": "text", "text": "x"}]}]',
        b'[{"role": "user", "content": null}]',
        b'[{"role": "user", "content": "\xff"}]',
        b'[{"role": "user", "content": "' + b"x" * 2_048 + b'"}]',
        b"[]",
    ],
)
def test_only_plain_conversations_are_supported(key: bytes) -> None:
    known = chat_memo(TOKENIZER)
    for _ in range(3):
        assert known.ids(key) is None
    assert known.size_bytes == 0


@pytest.mark.parametrize(
    "template", ["{{ strftime_now('%S') }}", "{{ [1, 2] | random }}", "{{ lipsum(1) }}"]
)
def test_time_dependent_prompts_are_not_remembered(template: str) -> None:
    known = chat_memo(default_tokenizer(template))
    assert known.ids(CHAT) is known.ids(CHAT) is None
