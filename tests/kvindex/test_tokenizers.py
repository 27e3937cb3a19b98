"""Prompts as token ids: exactly, in time, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

from app.kvindex.metrics import IndexMetrics
from app.kvindex.tokenizers import (
    Tokenization,
    TokenizationBusy,
    TokenizationSettings,
    TokenizationTimeout,
)
from app.tokenization import ChatOptions, LocalTokenizer, default_tokenizer
from app.tokenization.base import PLAIN_CHAT, Message, Tokenizer, TokenizerLoadError
from app.tokenization.files import TokenizerFolder
from app.tokenization.render import RenderTokenizer
from tests.kvindex.kinds import llama_3

TEXT = "Who are you, and what do you know about the sea? " * 60
CHAT = [{"role": "user", "content": TEXT}]


@pytest.fixture(scope="module")
def tokenizer() -> LocalTokenizer:
    return default_tokenizer()


class Stuck:
    """A tokenizer that does not answer before it is let."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self.let = tokenizer, Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.let.wait()
        return self._tokenizer.encode(text, add_special_tokens)


def test_prompts_are_what_the_tokenizer_says(tokenizer: LocalTokenizer) -> None:
    made = Tokenization(lambda model: tokenizer)
    for _ in range(3):
        assert made.encode("m", TEXT) == tokenizer.encode(TEXT, add_special_tokens=True)
        assert made.encode("m", TEXT + "And now?") == tokenizer.encode(TEXT + "And now?", True)
    for options in (ChatOptions(), ChatOptions(add_generation_prompt=False)):
        assert made.render_chat("m", CHAT, options) == tokenizer.render_chat(CHAT, options)
        assert made.encode_chat("m", CHAT, options) == tokenizer.encode_chat(CHAT, options)


def test_special_tokens_are_put_around_prompts_and_around_conversations_that_ask_for_them() -> None:
    tokenizer = LocalTokenizer(llama_3(), TokenizerFolder(tokenizer_file=Path("tokenizer.json")), "llama")
    made = Tokenization(lambda model: tokenizer)
    for text in ("hello", TEXT, TEXT):
        plain = tokenizer.encode(text)
        assert made.encode("m", text) == [1, *plain]
        assert made.encode("m", text, add_special_tokens=False) == plain
    asked = ChatOptions(add_special_tokens=True, chat_template="{{ messages[0].content }}")
    assert made.encode_chat("m", CHAT, asked) == [1, *tokenizer.encode(TEXT)]
    assert made.encode_chat("m", CHAT, replace(asked, add_special_tokens=False)) == tokenizer.encode(TEXT)


def test_a_remote_tokenizer_makes_tokens_of_conversations_itself() -> None:
    class Remote(RenderTokenizer):
        def encode_chat(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> list[int]:
            return [len(messages), options.add_generation_prompt]

    remote = Remote("http://127.0.0.1:9", model="m")
    made = Tokenization(lambda model: remote)
    assert made.encode_chat("m", CHAT) == [1, 1]
    assert made.encode_chat("m", CHAT, ChatOptions(add_generation_prompt=False)) == [1, 0]


def test_a_prompt_is_encoded_once_for_each_tokenizer_and_each_choice_of_special_tokens() -> None:
    calls: list[tuple[str, bool]] = []

    class Counting(LocalTokenizer):
        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            calls.append((text, add_special_tokens))
            return super().encode(text, add_special_tokens)

    folder = TokenizerFolder(tokenizer_file=Path("tokenizer.json"))
    one, other = (Counting(llama_3(), folder, "llama") for _ in range(2))
    models: dict[str, Tokenizer] = {"one": one, "other": other}
    made = Tokenization(models.__getitem__)
    for name in ("one", "other") * 2:
        for special in (True, False):
            ids = made.encode(name, TEXT, special)
            assert ids == LocalTokenizer.encode(one, TEXT, special)
            ids.clear()  # what was handed out is the caller's own
    assert calls == [(TEXT, True), (TEXT, False)] * 2


def test_prompts_are_remembered_up_to_a_bound(tokenizer: LocalTokenizer) -> None:
    made = Tokenization(lambda model: tokenizer, TokenizationSettings(prompts_bytes=40_000))
    for number in range(100):
        text = f"{number} {TEXT}"
        assert made.encode("m", text, False) == tokenizer.encode(text)
        assert made.prompts.size_bytes <= 40_000
    assert made.prompts.size_bytes > 10_000


def test_an_unknown_model_is_a_clear_error() -> None:
    def find(model: str) -> Tokenizer:
        raise TokenizerLoadError(f"There is no model {model}.")

    made = Tokenization(find)
    for ask in (lambda: made.encode("unknown", "hello"), lambda: made.encode_chat("unknown", CHAT)):
        with pytest.raises(TokenizerLoadError, match="There is no model unknown"):
            ask()


def test_what_takes_too_long_is_an_error_in_time_and_what_is_too_much_one_at_once(
    tokenizer: LocalTokenizer,
) -> None:
    stuck = Stuck(tokenizer)
    limits = TokenizationSettings(timeout_s=0.05, workers=2, most_waiting=1)
    made = Tokenization(lambda model: stuck, limits)  # type: ignore[arg-type,return-value]
    asked = [gevent.spawn(made.encode, "m", "hello") for _ in range(4)]
    gevent.joinall(asked)
    assert [type(each.exception) for each in asked] == [TokenizationTimeout] * 3 + [TokenizationBusy]
    assert "0.05 seconds" in str(asked[0].exception)
    stuck.let.set()
    assert made.encode("m", "hello") == tokenizer.encode("hello", True)


def test_so_many_prompts_are_tokenized_at_a_time(tokenizer: LocalTokenizer) -> None:
    running, most = [0], [0]

    class Slow(Stuck):
        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            running[0] += 1
            most[0] = max(most[0], running[0])
            gevent.sleep(0.002)
            running[0] -= 1
            return [1]

    slow = Slow(tokenizer)
    made = Tokenization(lambda model: slow, TokenizationSettings(workers=3))  # type: ignore[arg-type,return-value]
    asked = [gevent.spawn(made.encode, "m", "hello") for _ in range(10)]
    gevent.joinall(asked)
    assert [each.value for each in asked] == [[1]] * 10 and most == [3]


def test_errors_of_the_tokenizer_are_told(tokenizer: LocalTokenizer) -> None:
    made = Tokenization(lambda model: tokenizer)
    with pytest.raises(ValueError):
        made.encode("m", TEXT + "\ud800")


def test_what_is_done_is_counted(tokenizer: LocalTokenizer) -> None:
    metrics = IndexMetrics()
    made = Tokenization(lambda model: tokenizer, metrics=metrics)
    count = len(made.encode_chat("m", [{"role": "user", "content": "hello"}]))
    text = metrics.render({}, {}, {})
    assert f'kvcache_tokenization_tokenized_tokens_total{{tokenizer="embedded"}} {count}.0' in text
    for name in ("tokenization", "render_chat_template"):
        assert f'kvcache_tokenization_{name}_latency_seconds_count{{tokenizer="embedded"}} 1.0' in text


def test_how_long_it_took_is_counted_by_the_clock(tokenizer: LocalTokenizer) -> None:
    metrics, clock = IndexMetrics(), count(1000)
    made = Tokenization(lambda model: tokenizer, metrics=metrics, clock=lambda: float(next(clock)))
    made.encode("m", "hello")
    made.render_chat("m", [{"role": "user", "content": "hello"}])
    sums = [line for line in metrics.render({}, {}, {}).splitlines() if "_seconds_sum{" in line]
    assert len(sums) == 2 and all(line.endswith(" 1.0") for line in sums)
