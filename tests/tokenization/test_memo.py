"""Prompts that were encoded before are remembered, within a limit of memory."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest

from app.text.huggingface import default_tokenizer
from app.text.memo import KnownChats, KnownPrompts, KnownTexts

TOKENIZER = default_tokenizer()
CHAT = b'[{"role": "user", "content": "Who comes again?"}]'
PROMPTS = [(KnownTexts, b"Who comes again?"), (KnownChats, CHAT)]


def test_what_was_not_used_for_longest_goes() -> None:
    known = KnownTexts(TOKENIZER, limit_bytes=10_000)
    for number in range(1_000):
        for text in (str(number), str(number), "first"):
            assert known.ids(text.encode()) == TOKENIZER.encode(text)
        assert known.size_bytes <= known.limit_bytes
    known.encode = lambda key: None  # type: ignore[method-assign]
    assert known.ids(b"1") is None
    assert known.ids(b"first") and known.ids(b"999")


def test_the_size_is_what_is_held() -> None:
    known = KnownTexts(TOKENIZER, 1 << 18)
    known.encode = lambda key: [1_000 * len(key) + k for k in range(hash(key) % 60)]  # type: ignore[method-assign]
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


@pytest.mark.parametrize("kind, key", PROMPTS)
def test_a_prompt_has_the_tokenizer_s_ids_and_is_remembered_when_it_comes_again(
    kind: type[KnownPrompts], key: bytes
) -> None:
    known = kind(TOKENIZER)
    as_text = key.decode()
    expected = TOKENIZER.encode_chat(json.loads(key)) if key is CHAT else TOKENIZER.encode(as_text, True)
    assert known.ids(key) == expected
    assert known.size_bytes == 0, "most prompts never come again"
    assert known.ids(key) == expected
    assert known.size_bytes > 0
    known.encode = None  # type: ignore[assignment, method-assign]  # nobody asks the tokenizer any more
    assert known.ids(key) == expected


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
def test_what_is_no_plain_conversation_has_no_ids_here(key: bytes) -> None:
    known = KnownChats(TOKENIZER)
    for _ in range(3):
        assert known.ids(key) is None
    assert known.size_bytes == 0
