"""Prompts as token ids, in time or refused; tokenizers loaded once, and never waited for without
end.
"""

import os
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
import tokenizers
from gevent.event import Event
from msgspec.structs import replace
from tokenizers import Regex, models, pre_tokenizers, processors, trainers

from app.core.text.base import (
    ChatOptions,
    Tokenizer,
    TokenizerError,
    TokenizerLoadError,
    TokenizerServiceError,
)
from app.core.text.files import TokenizerFolder
from app.core.text.huggingface import LocalTokenizer, default_tokenizer
from app.extensions.kv_index.metrics import IndexMetrics
from app.extensions.kv_index.tokenization import (
    LONG_PROMPT,
    WORKERS,
    Tokenization,
    TokenizationBusyError,
    TokenizationTimeoutError,
)
from app.extensions.kv_index.tokenizers import (
    FAILURE_BYTES,
    TokenizerLibrary,
    TokenizerSources,
    UnknownModelError,
    find_tokenizer,
    tokenizer_bytes,
)
from app.shared.virtual_clock import VirtualClock

TEXT = "Who are you, and what do you know about the sea? " * 60
CHAT = [{"role": "user", "content": TEXT}]
PATIENCE_S = 20.0
CORPUS = (
    "The capital of France is Paris, and the answer to all of it is 42 or 1234567.",
    "the cat sat on the mat; the dog's log won't burn. aaa aaaa bababa\n\n    return x == y\n",
    "Überall naïve cafés, straße und Äpfel. 東京は日本の首都です。 эти слова 🎉🎉👍🏽 e\u0301a\u0302\u0301",
    "https://example.org/a/very/long/path?with=query&and=0123456789 <|user|> <mask>",
)  # fmt: skip
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module")
def tokenizer() -> LocalTokenizer:
    return default_tokenizer()


class Stuck:
    """A tokenizer that does not answer before it is let."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.let = Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        self.let.wait()
        return self._tokenizer.encode(text, add_special_tokens)


def test_special_tokens_are_added_unless_the_request_disables_them() -> None:
    folder = TokenizerFolder(
        tokenizer_file=Path("tokenizer.json"),
        chat_templates={"default": "{{ messages[0].content }}"},
    )
    tokenizer = LocalTokenizer(llama_3(), folder, "llama")
    tokenization = Tokenization({"m": tokenizer}.__getitem__, IndexMetrics(), 10.0)
    for text in ("hello", TEXT, TEXT):
        plain = tokenizer.encode(text)
        assert list(tokenization.encode("m", text)) == [1, *plain]
        assert list(tokenization.encode("m", text, add_special_tokens=False)) == plain
    options = ChatOptions(add_special_tokens=True)
    assert list(tokenization.encode_chat("m", CHAT, options)) == [1, *tokenizer.encode(TEXT)]
    plain_options = replace(options, add_special_tokens=False)
    assert list(tokenization.encode_chat("m", CHAT, plain_options)) == tokenizer.encode(TEXT)


def test_prompt_is_encoded_once_per_tokenizer_and_special_token_option() -> None:
    calls: list[tuple[str, bool]] = []

    class Counting(LocalTokenizer):
        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            calls.append((text, add_special_tokens))
            return super().encode(text, add_special_tokens)

    folder = TokenizerFolder(tokenizer_file=Path("tokenizer.json"))
    first, second = (Counting(llama_3(), folder, "llama") for _ in range(2))
    models: dict[str, Tokenizer] = {"one": first, "other": second}
    tokenization = Tokenization(models.__getitem__, IndexMetrics(), 10.0)
    for name in ("one", "other") * 2:
        for special in (True, False):
            ids = tokenization.encode(name, TEXT, special)
            assert list(ids) == LocalTokenizer.encode(first, TEXT, special)
            assert isinstance(ids, array)
            del ids[:]  # the caller may change the array
    assert calls == [(TEXT, True), (TEXT, False)] * 2


def test_excess_prompts_are_rejected_while_slow_prompts_are_encoded(
    tokenizer: LocalTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck(tokenizer)
    monkeypatch.setattr("app.extensions.kv_index.tokenization.WORKERS", 2)
    monkeypatch.setattr("app.extensions.kv_index.tokenization.MAX_WAITING", 1)
    tokenization = Tokenization({"m": stuck}.__getitem__, IndexMetrics(), 0.05)  # type: ignore[arg-type,return-value]
    greenlets = [gevent.spawn(tokenization.encode, "m", "hello") for _ in range(4)]
    gevent.joinall(greenlets)
    assert [type(greenlet.exception) for greenlet in greenlets] == [
        TokenizationTimeoutError
    ] * 3 + [TokenizationBusyError]
    assert "0.05 seconds" in str(greenlets[0].exception)
    stuck.let.set()
    assert list(tokenization.encode("m", "hello")) == tokenizer.encode("hello", True)


def test_short_prompts_do_not_wait_for_long_ones(tokenizer: LocalTokenizer) -> None:
    class StuckOnLong(Stuck):
        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            if len(text) <= LONG_PROMPT:
                self.let.set()
            return super().encode(text, add_special_tokens)

    stuck = StuckOnLong(tokenizer)
    tokenization = Tokenization({"m": stuck}.__getitem__, IndexMetrics(), 10.0)  # type: ignore[arg-type,return-value]
    text = "a " * LONG_PROMPT
    greenlets = [gevent.spawn(tokenization.encode, "m", text) for _ in range(WORKERS)]
    gevent.sleep(0)
    assert not any(greenlet.ready() for greenlet in greenlets)
    assert list(tokenization.encode("m", "hello")) == tokenizer.encode("hello", True)
    gevent.joinall(greenlets, raise_error=True)


class Loader:
    """Records the loaded sources, blocks those with a gate, and fails for those that start with `bad`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.calls: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self._tokenizer = tokenizer

    def __call__(self, source: str) -> Tokenizer:
        self.calls.append(source)
        if source in self.gates:
            assert self.gates[source].wait(PATIENCE_S)
        if source.startswith("bad"):
            raise OSError(f"{source} is not readable")
        return self._tokenizer


@pytest.fixture
def loader(embedded: LocalTokenizer) -> Iterator[Loader]:
    """Called in native threads, because the library loads in greenlets."""
    loader = Loader(embedded)
    yield loader
    for gate in loader.gates.values():
        gate.set()


def library(loader: Loader, models: str = "a b c bad", **settings: Any) -> TokenizerLibrary:
    settings.setdefault("timeout_s", PATIENCE_S)
    by_model = {model: model for model in models.split()}
    sources = TokenizerSources(by_model=by_model, hub=settings.pop("hub", False))
    return TokenizerLibrary(loader, sources, **settings)


def outcomes(
    library: TokenizerLibrary, model: str, requests: int = 16
) -> list[Tokenizer | TokenizerError]:
    def ask() -> Tokenizer | TokenizerError:
        try:
            return library.get(model)
        except TokenizerError as error:
            return error

    return [
        greenlet.value for greenlet in gevent.joinall([gevent.spawn(ask) for _ in range(requests)])
    ]


def test_each_request_gets_its_own_error_for_a_failed_tokenizer_load(
    loader: Loader,
) -> None:
    errors = outcomes(library(loader), "bad")
    assert loader.calls == ["bad"]
    assert {str(error) for error in errors} == {
        "The tokenizer for the model `bad` cannot be loaded: OSError: bad is not readable"
    }
    assert {type(error) for error in errors} == {TokenizerLoadError}
    assert len(set(map(id, errors))) == 16


def test_failed_tokenizer_load_is_retried_after_a_delay(loader: Loader) -> None:
    clock = VirtualClock()
    models = library(loader, now=clock.now)
    for seconds, loads in ((0, 1), (9.9, 1), (0.2, 2)):  # ten seconds
        clock.advance(seconds)
        with pytest.raises(TokenizerLoadError):
            models.get("bad")
        assert len(loader.calls) == loads


def test_least_recently_used_tokenizer_is_evicted(loader: Loader, embedded: LocalTokenizer) -> None:
    room = 2 * tokenizer_bytes(embedded)
    models = library(loader, limit_bytes=room)
    for model in ("a", "b", "a", "c", "a", "b"):
        models.get(model)
    assert loader.calls == ["a", "b", "c", "b"]
    assert models.size_bytes == room < models.limit_bytes
    with pytest.raises(TokenizerLoadError):
        models.get("bad")
    assert models.size_bytes == room + FAILURE_BYTES


def test_tokenizer_hub_is_queried_only_for_valid_model_names(
    loader: Loader,
) -> None:
    models = library(loader, hub=True)
    models.get("org/some-model.v2")
    for name in (
        "",
        "gpt2",
        "/etc/passwd",
        "../secret/x",
        "org/..",
        "org/a..b",
        "a/b/c",
        "-x/y",
        "a/b c",
    ):
        with pytest.raises(UnknownModelError):
            models.get(name)
    assert loader.calls == ["org/some-model.v2"]


def test_tokenizer_load_continues_after_the_timeout_of_the_request(
    loader: Loader, embedded: LocalTokenizer
) -> None:
    loader.gates["a"] = threading.Event()
    models = library(loader, timeout_s=0.05)
    for _ in range(2):
        with pytest.raises(TokenizerServiceError, match="`a` was not loaded within 0.05 s"):
            models.get("a")
    loader.gates["a"].set()
    assert wait_for_tokenizer(models, "a") is embedded
    assert loader.calls == ["a"]


def test_number_of_concurrent_tokenizer_loads_is_limited(
    loader: Loader, embedded: LocalTokenizer
) -> None:
    loader.gates |= {"a": threading.Event(), "b": threading.Event()}
    models = library(loader, timeout_s=0.05)
    for model in ("a", "b", "c"):
        with pytest.raises(TokenizerServiceError):
            models.get(model)
    assert loader.calls == ["a", "b"]
    loader.gates["b"].set()
    assert wait_for_tokenizer(models, "c") is embedded


def test_request_for_a_further_model_is_rejected_while_64_are_loading(loader: Loader) -> None:
    *names, further = [f"model{number}" for number in range(64 + 1)]
    models = library(loader, " ".join([*names, further]), timeout_s=0)
    loader.gates |= {name: threading.Event() for name in (*names, further)}
    for name in names:
        with pytest.raises(TokenizerServiceError, match="within"):
            models.get(name)
    with pytest.raises(TokenizerServiceError, match="Too many"):
        models.get(further)


def wait_for_tokenizer(models: TokenizerLibrary, name: str) -> Tokenizer:
    """The tokenizer of a model, as soon as it is loaded."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return models.get(name)
        except TokenizerServiceError:
            assert time.monotonic() < end_s


def put(directory: Path, *folders: str) -> None:
    for folder in folders:
        (directory / folder).mkdir(parents=True, exist_ok=True)
        (directory / folder / "tokenizer.json").write_text("{}")


def test_tokenizers_are_found_by_path_and_in_the_hub_cache(tmp_path: Path) -> None:
    cached = "hub/models--Qwen--Qwen3-0.6B/snapshots/0123abc"
    put(tmp_path, cached, "mine/tuned", "models--org--a--b/snapshots/x")
    (tmp_path / "mine/empty").mkdir()
    for model, folder in (
        ("Qwen/Qwen3-0.6B", cached),
        ("mine/tuned", "mine/tuned"),
        ("org/a--b", "models--org--a--b/snapshots/x"),
    ):
        assert find_tokenizer(tmp_path, model) == tmp_path / folder / "tokenizer.json"
    assert (
        find_tokenizer(tmp_path / "mine/tuned", "tuned") == tmp_path / "mine/tuned/tokenizer.json"
    )
    for model in (
        "late",
        "mine/empty",
        "",
        "/",
        "mine/../mine/tuned",
        f"/{tmp_path}/mine/tuned",
        "x" * 9999,
        "\0",
    ):
        assert find_tokenizer(tmp_path, model) is None
    put(tmp_path, "late")
    assert find_tokenizer(tmp_path, "late") == tmp_path / "late/tokenizer.json"


def test_main_snapshot_takes_precedence_over_the_latest_snapshot(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "models--org--name"
    for name, written_s in (("a", 3000), ("b", 1000), ("c", 2000)):
        put(repository, f"snapshots/{name}")
        os.utime(repository / "snapshots" / name / "tokenizer.json", (written_s, written_s))
    assert find_tokenizer(tmp_path, "org/name") == repository / "snapshots/a/tokenizer.json"
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("c\n")
    assert find_tokenizer(tmp_path, "org/name") == repository / "snapshots/c/tokenizer.json"


def llama_3() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    splits = [
        pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    begin = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), begin])
    return tokenizer
