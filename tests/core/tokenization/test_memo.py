"""Prompts that were encoded before are remembered, within a limit of memory."""

import gc
import json
import tracemalloc

import pytest

from app.core.base.clock.pause import TurnOverError
from app.core.text.huggingface import default_tokenizer
from app.core.text.memo import PromptMemo, chat_memo, text_memo

TOKENIZER = default_tokenizer()
CHAT = b'[{"role": "user", "content": "Who comes again?"}]'


def test_prompts_are_forgotten_when_the_memory_is_full() -> None:
    encoded: list[bytes] = []

    def encode(key: bytes) -> list[int]:
        encoded.append(key)
        return TOKENIZER.encode(key.decode())

    memo = PromptMemo(encode, limit_bytes=10_000)
    for number in range(1_000):
        for text in (str(number), str(number), "first"):
            assert memo.ids(text.encode()) == TOKENIZER.encode(text)
        assert memo.size_bytes <= memo.limit_bytes
    encoded.clear()
    assert memo.ids(b"999") and not encoded, "the latest prompt is remembered"
    assert memo.ids(b"1") and encoded == [b"1"], "an early prompt is forgotten"
    # Whether it counts as seen depends on the hashes of this process.
    memo.ids(b"1")
    encoded.clear()
    assert memo.ids(b"1") and not encoded, "and remembered again when it is used twice"


def test_prompt_is_left_to_a_greenlet_while_the_loop_has_no_time() -> None:
    is_late = True

    def encode(key: bytes) -> list[int]:
        if is_late:
            raise TurnOverError
        return [len(key)]

    memo = PromptMemo(encode)
    assert memo.ids(b"four") is None
    is_late = False
    assert memo.ids(b"four") == [4]


def test_reported_prompt_cache_size_is_close_to_the_memory_it_uses() -> None:
    memo = PromptMemo(lambda key: [1_000 * len(key) + k for k in range(hash(key) % 60)], 1 << 18)
    tracemalloc.start()
    try:
        number = 0
        while memo.size_bytes < 0.95 * memo.limit_bytes:
            number += 1
            for _ in range(2):
                memo.ids(f"[{number}, the prompt of a chat]".encode())
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.9 * memo.limit_bytes < memo.size_bytes <= memo.limit_bytes
    assert 0.9 * held_bytes < memo.size_bytes < 1.2 * held_bytes


def test_prompt_is_cached_from_its_second_use() -> None:
    text = "Who comes again?"
    for memo, key, expected in (
        (text_memo(TOKENIZER), text.encode(), TOKENIZER.encode(text, True)),
        (chat_memo(TOKENIZER), CHAT, TOKENIZER.encode_chat(json.loads(CHAT))),
    ):
        assert memo.ids(key) == expected
        assert memo.size_bytes == 0, "most prompts never come again"
        assert memo.ids(key) == expected
        assert memo.size_bytes > 0
        assert memo.ids(key) is memo.ids(key)


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
def test_prompt_cache_skips_chats_that_are_long_or_not_plain_text(
    key: bytes,
) -> None:
    memo = chat_memo(TOKENIZER)
    for _ in range(3):
        assert memo.ids(key) is None
    assert memo.size_bytes == 0


@pytest.mark.parametrize(
    "template", ["{{ strftime_now('%S') }}", "{{ [1, 2] | random }}", "{{ lipsum(1) }}"]
)
def test_time_dependent_prompts_are_not_cached(template: str) -> None:
    memo = chat_memo(default_tokenizer(template))
    assert memo.ids(CHAT) is memo.ids(CHAT) is None
