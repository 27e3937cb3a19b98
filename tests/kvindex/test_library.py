"""Tokenizers by the name of their model: loaded once, and never waited for without end."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from app.clock.clock import VirtualClock
from app.kvindex.tokenizers import (
    FAILURE_BYTES,
    LONGEST_NAME,
    Discovery,
    TokenizerLibrary,
    UnknownModelError,
    discover,
    tokenizer_bytes,
)
from app.tokenization import (
    LocalTokenizer,
    Tokenizer,
    TokenizerError,
    TokenizerLoadError,
    TokenizerServiceError,
)
from tests.running_server import ROOT

PATIENCE_S = 20.0


class Loader:
    """Counts what it is asked for, holds back what is gated, and fails for sources that begin with `bad`."""

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
def loader(embedded: LocalTokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    """Called in native threads, as beside a loop that serves requests."""
    monkeypatch.setattr(gevent.get_hub(), "is_shared", True, raising=False)
    loader = Loader(embedded)
    yield loader
    for gate in loader.gates.values():
        gate.set()


def library(loader: Loader, models: str = "a b c bad", **settings: Any) -> TokenizerLibrary:
    settings.setdefault("timeout_s", PATIENCE_S)
    return TokenizerLibrary(loader, sources={model: model for model in models.split()}, **settings)


def outcomes(library: TokenizerLibrary, model: str, requests: int = 16) -> list[Tokenizer | TokenizerError]:
    def ask() -> Tokenizer | TokenizerError:
        try:
            return library.get(model)
        except TokenizerError as error:
            return error

    return [each.value for each in gevent.joinall([gevent.spawn(ask) for _ in range(requests)])]


def test_many_who_ask_at_once_share_one_load(loader: Loader, embedded: LocalTokenizer) -> None:
    assert outcomes(library(loader), "a") == [embedded] * 16
    assert loader.calls == ["a"]


def test_a_failure_is_told_to_all_in_one_sentence_each_with_an_error_of_its_own(loader: Loader) -> None:
    told = outcomes(library(loader), "bad")
    assert loader.calls == ["bad"]
    assert {str(each) for each in told} == {
        "The tokenizer of the model `bad` cannot be loaded: OSError: bad is not readable"
    }
    assert {type(each) for each in told} == {TokenizerLoadError}
    assert len(set(map(id, told))) == 16


def test_a_failed_load_is_tried_again_after_a_while(loader: Loader) -> None:
    clock = VirtualClock()
    models = library(loader, now=clock.now)
    for seconds, loads in ((0, 1), (9.9, 1), (0.2, 2)):  # ten seconds
        clock.advance(seconds)
        with pytest.raises(TokenizerLoadError):
            models.get("bad")
        assert len(loader.calls) == loads


def test_an_unknown_model_is_an_error_that_names_it_and_nothing_is_loaded(loader: Loader) -> None:
    with pytest.raises(UnknownModelError, match="^There is no tokenizer for the model `org/nobody`.$"):
        library(loader).get("org/nobody")
    assert loader.calls == []


def test_of_a_long_name_an_error_repeats_the_beginning(loader: Loader) -> None:
    for name, shown in (("x" * LONGEST_NAME, "x" * LONGEST_NAME), ("y" * 100_000, "y" * LONGEST_NAME + "…")):
        with pytest.raises(UnknownModelError, match=f"model `{shown}`.$"):
            library(loader).get(name)


def test_ready_tokenizers_are_never_loaded_nor_dropped(loader: Loader, embedded: LocalTokenizer) -> None:
    models = library(loader, ready={"own": embedded}, limit_bytes=tokenizer_bytes(embedded))
    for model in ("own", "a", "b", "own"):
        assert models.get(model) is embedded
    assert loader.calls == ["a", "b"]


def test_the_tokenizer_that_was_not_used_for_longest_is_dropped(
    loader: Loader, embedded: LocalTokenizer
) -> None:
    room = 2 * tokenizer_bytes(embedded)
    models = library(loader, limit_bytes=room)
    for model in ("a", "b", "a", "c", "a", "b"):
        models.get(model)
    assert loader.calls == ["a", "b", "c", "b"]
    assert models.size_bytes == room < models.limit_bytes
    with pytest.raises(TokenizerLoadError):
        models.get("bad")
    assert models.size_bytes == room + FAILURE_BYTES


def test_a_tokenizer_that_is_larger_than_the_room_for_all_is_given_but_not_kept(
    loader: Loader, embedded: LocalTokenizer
) -> None:
    models = library(loader, limit_bytes=tokenizer_bytes(embedded) - 1)
    assert [models.get("a"), models.get("a")] == [embedded] * 2
    assert (loader.calls, models.size_bytes) == (["a", "a"], 0)


def test_failures_take_little_memory_however_long_the_names_of_models_are(loader: Loader) -> None:
    names = [f"bad{number}{'x' * 10**5}" for number in range(30)]
    models = library(loader, " ".join(names), limit_bytes=1)
    for name in names:
        with pytest.raises(TokenizerLoadError):
            models.get(name)
    assert models.size_bytes == 0 and models.limit_bytes < 3 * 10**6


def test_the_hub_is_asked_only_when_allowed_and_only_for_names_that_it_can_have(loader: Loader) -> None:
    models = library(loader, hub=True)
    models.get("org/some-model.v2")
    for name in ("", "gpt2", "/etc/passwd", "../secret/x", "org/..", "org/a..b", "a/b/c", "-x/y", "a/b c"):
        with pytest.raises(UnknownModelError):
            models.get(name)
    assert loader.calls == ["org/some-model.v2"]


def test_a_load_out_of_time_is_an_error_and_its_tokenizer_is_there_later(
    loader: Loader, embedded: LocalTokenizer
) -> None:
    loader.gates["a"] = threading.Event()
    models = library(loader, timeout_s=0.05)
    for _ in range(2):
        with pytest.raises(TokenizerServiceError, match="`a` was not loaded within 0.05 s"):
            models.get("a")
    loader.gates["a"].set()
    assert eventually(lambda: models.get("a")) is embedded
    assert loader.calls == ["a"]


def test_only_so_many_loads_run_at_once(loader: Loader, embedded: LocalTokenizer) -> None:
    loader.gates |= {"a": threading.Event(), "b": threading.Event()}
    models = library(loader, timeout_s=0.05)
    for model in ("a", "b", "c"):
        with pytest.raises(TokenizerServiceError):
            models.get(model)
    assert loader.calls == ["a", "b"]
    loader.gates["b"].set()
    assert eventually(lambda: models.get("c")) is embedded


def test_too_many_models_on_their_way_are_an_error_at_once(loader: Loader) -> None:
    *names, further = [f"model{number}" for number in range(64 + 1)]
    models = library(loader, " ".join([*names, further]), timeout_s=0)
    loader.gates |= {name: threading.Event() for name in (*names, further)}
    for name in names:
        with pytest.raises(TokenizerServiceError, match="within"):
            models.get(name)
    with pytest.raises(TokenizerServiceError, match="Too many"):
        models.get(further)
    loader.gates[names[0]].set()
    eventually(lambda: models.get(names[0]))
    with pytest.raises(TokenizerServiceError, match="within"):  # there is a place for it
        models.get(further)


def eventually(ask: Callable[[], Tokenizer]) -> Tokenizer:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except TokenizerServiceError:
            assert time.monotonic() < end_s


def test_a_discovered_model_is_loaded_from_its_file(tmp_path: Path, loader: Loader) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found/tokenizer.json").write_text("{}")
    models = TokenizerLibrary(loader, timeout_s=PATIENCE_S, discovery=Discovery(tmp_path, VirtualClock().now))
    models.get("found")
    assert loader.calls == [str(tmp_path / "found/tokenizer.json")]
    with pytest.raises(UnknownModelError, match="`lost`"):
        models.get("lost")


HANGING = """
import sys, time
from pathlib import Path
from gevent import monkey
if sys.argv[1] == "patched":
    monkey.patch_all()
import gevent
from app.clock.pause import share_loop
from app.tokenization import TokenizerError, default_tokenizer
from app.kvindex.tokenizers import Discovery, TokenizerLibrary

share_loop()

hang = monkey.get_original("threading", "Lock")()
hang.acquire()
def load(source):
    if source == "hangs":
        hang.acquire()  # a library that blocks its native thread, event loop or not
    return default_tokenizer()

sources = {"hangs": "hangs", "good": "good"}
discovery = Discovery(Path("nowhere"), time.monotonic)
library = TokenizerLibrary(load, sources=sources, discovery=discovery, timeout_s=0.3)
def ask(model):
    try:
        return library.get(model).name
    except TokenizerError as error:
        return str(error)

asked = [gevent.spawn(ask, name) for name in ("hangs", "hangs", "nobody", "good")]
gevent.joinall(asked)
for each in asked:
    print(each.value)
"""


@pytest.mark.parametrize("how", ["patched", "plain"])
def test_a_load_that_hangs_keeps_neither_requests_nor_the_event_loop_nor_the_process(how: str) -> None:
    command = [sys.executable, "-c", HANGING, how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    late = "The tokenizer of the model `hangs` was not loaded within 0.3 s."
    lost = "There is no tokenizer for the model `nobody`."
    assert done.stdout.splitlines() == [late, late, lost, "embedded"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def put(directory: Path, *folders: str) -> None:
    for folder in folders:
        (directory / folder).mkdir(parents=True, exist_ok=True)
        (directory / folder / "tokenizer.json").write_text("{}")


def test_tokenizers_are_discovered_under_the_names_of_their_models(tmp_path: Path) -> None:
    cached = "hub/models--Qwen--Qwen3-0.6B/snapshots/0123abc"
    put(tmp_path, cached, "mine/tuned", "models--flat/other", "models--org--a--b/snapshots/x")
    (tmp_path / "mine/empty").mkdir()
    assert dict(discover(tmp_path)) == {
        "Qwen/Qwen3-0.6B": tmp_path / cached / "tokenizer.json",
        "mine/tuned": tmp_path / "mine/tuned/tokenizer.json",
        "models--flat/other": tmp_path / "models--flat/other/tokenizer.json",
        "org/a--b": tmp_path / "models--org--a--b/snapshots/x/tokenizer.json",
    }
    assert list(dict(discover(tmp_path / "mine/tuned"))) == ["tuned"]
    assert dict(discover(tmp_path / "missing")) == {}


def test_of_several_snapshots_the_current_one_counts(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    put(repository, "snapshots/old", "snapshots/main", "snapshots/new")
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("main\n")
    assert dict(discover(tmp_path)) == {"org/name": repository / "snapshots/main/tokenizer.json"}


def test_only_snapshots_of_repositories_have_names_of_their_own(tmp_path: Path) -> None:
    put(tmp_path, "models--org--name/files/x", "org--name/snapshots/x", "models--org--name/snapshots/x/deep")
    assert set(dict(discover(tmp_path))) == {
        "models--org--name/files/x",
        "org--name/snapshots/x",
        "models--org--name/snapshots/x/deep",
    }


def test_what_a_repository_points_to_goes_before_what_was_written_later(tmp_path: Path) -> None:
    current = tmp_path / "models--org--name/snapshots/main/tokenizer.json"
    put(tmp_path, "models--org--name/snapshots/main", "models--org--name/refs", "org/name")
    (tmp_path / "models--org--name/refs/main").write_text("main")
    os.utime(current, (1000, 1000))
    assert dict(discover(tmp_path))["org/name"] == current


def test_without_a_word_on_which_is_current_what_was_written_last_counts(tmp_path: Path) -> None:
    snapshots = tmp_path / "models--org--name/snapshots"
    for name, written_s in (("a", 3000), ("b", 1000), ("c", 2000)):
        put(snapshots, name)
        os.utime(snapshots / name / "tokenizer.json", (written_s, written_s))
    assert dict(discover(tmp_path)) == {"org/name": snapshots / "a/tokenizer.json"}


def test_a_link_to_nowhere_goes_behind_every_file(tmp_path: Path) -> None:
    snapshots = tmp_path / "models--org--name/snapshots"
    put(snapshots, "a")
    os.utime(snapshots / "a/tokenizer.json", (0.5, 0.5))
    (snapshots / "b").mkdir()
    (snapshots / "b/tokenizer.json").symlink_to("lost")
    assert dict(discover(tmp_path)) == {"org/name": snapshots / "a/tokenizer.json"}


def test_a_model_that_is_mounted_later_is_found_but_the_disk_is_not_read_for_every_unknown_name(
    tmp_path: Path,
) -> None:
    now_s = [0.0]
    discovery = Discovery(tmp_path, lambda: now_s[0])
    assert discovery.find("late") is None
    put(tmp_path, "late")
    now_s[0] = 9.9  # not yet ten seconds later
    assert discovery.find("late") is None
    now_s[0] = 10.0
    assert discovery.find("late") == tmp_path / "late/tokenizer.json"
    put(tmp_path, "later")
    now_s[0] = 19.9
    assert discovery.find("later") is None
    now_s[0] = 20.0
    assert discovery.find("later") == tmp_path / "later/tokenizer.json"
