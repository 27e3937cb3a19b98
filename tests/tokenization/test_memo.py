"""Prompts that were encoded before are remembered, within a limit of memory."""

from __future__ import annotations

import gc
import json
import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from app.text import PromptMemo
from app.text.loading import default_tokenizer
from app.text.memo import ID_BYTES, KnownChats, KnownPrompts, KnownTexts

TOKENIZER = default_tokenizer()
CHAT = b'[{"role": "user", "content": "Who comes again?"}]'
PROMPTS = [(KnownTexts, b"Who comes again?"), (KnownChats, CHAT)]


def test_what_was_not_used_for_longest_goes_and_what_is_large_is_not_kept() -> None:
    memo = PromptMemo(10_000)
    assert memo.get(b"0") is None
    for number in range(1_000):
        memo.put(str(number).encode(), [number])
        memo.put(str(number).encode(), [number])
        assert memo.get(b"0") == [0]
        assert memo.size_bytes <= memo.limit_bytes
    assert (memo.get(b"1"), memo.get(b"999")) == (None, [999])
    memo.put(b"a", list(range(1_000)))
    memo.put(b"b" * 5_000, [1])
    assert memo.get(b"a") is memo.get(b"b" * 5_000) is None


@pytest.mark.parametrize(("kind", "id_bytes"), [(list, ID_BYTES), (partial(array, "I"), 4)])
def test_the_size_is_what_the_memo_holds(kind: Callable[[list[int]], Sequence[int]], id_bytes: int) -> None:
    memo: PromptMemo[Sequence[int]] = PromptMemo(1 << 18, id_bytes)
    tracemalloc.start()
    try:
        for number in range(1_500):
            ids = kind([1_000 * number + k for k in range(number % 60)])
            memo.put(f"[{number}, the prompt of a chat]".encode(), ids)
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.9 * memo.limit_bytes < memo.size_bytes <= memo.limit_bytes
    assert 0.9 * held_bytes < memo.size_bytes < 1.2 * held_bytes


@pytest.mark.parametrize("kind, key", PROMPTS)
def test_a_prompt_has_the_tokenizer_s_ids_and_is_remembered_when_it_comes_again(
    kind: type[KnownPrompts], key: bytes
) -> None:
    known = kind(TOKENIZER)
    as_text = key.decode()
    expected = TOKENIZER.encode_chat(json.loads(key)) if key is CHAT else TOKENIZER.encode(as_text, True)
    assert known.ids(key) == expected
    assert known.memo.size_bytes == 0, "most prompts never come again"
    assert known.ids(key) == expected
    assert known.memo.get(key) == expected
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
    assert known.memo.size_bytes == 0
