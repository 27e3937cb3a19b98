"""Local tokenizers: what goes in comes out."""

import json
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.text import huggingface, long_texts
from app.core.text.base import (
    ChatOptions,
    ChatTemplateError,
    TokenIdError,
    TokenizerInputError,
    TokenizerLoadError,
)
from app.core.text.huggingface import LocalTokenizer, default_tokenizer
from app.core.text.long_texts import MAX_LONG_TEXTS, PIECE

ROOT = Path(__file__).parents[3]
EMBEDDED = default_tokenizer()


@given(st.lists(st.text(max_size=30), max_size=6))
@settings(max_examples=50, deadline=None)
def test_any_text_survives_encoding_and_decoding(texts: list[str]) -> None:
    ids = EMBEDDED.encode_many(texts)
    assert ids == [EMBEDDED.encode(text) for text in texts]
    assert [EMBEDDED.decode(token_ids, skip_special_tokens=False) for token_ids in ids] == texts


def test_text_of_the_first_tokens_of_a_sentence_encodes_to_the_same_tokens(
    embedded: LocalTokenizer,
) -> None:
    """The length of a reply is counted in ids, clients count by encoding its text."""
    for file in (ROOT / "app/core/engine/simulated/sentences").glob("*.txt"):
        for line in file.read_text(encoding="utf-8").splitlines():
            ids = embedded.encode(line)
            for cut in range(1, len(ids) + 1):
                text = embedded.decode(ids[:cut])
                assert text.endswith("\ufffd") or embedded.encode(text) == ids[:cut]


def test_special_tokens_are_omitted_from_the_decoded_text_unless_requested(
    embedded: LocalTokenizer,
) -> None:
    ids = [*embedded.encode("done"), 0]
    assert embedded.decode(ids) == "done"
    assert embedded.decode(ids, skip_special_tokens=False) == "done<|endoftext|>"
    assert (embedded.eos_token_id, embedded.eos_token_ids) == (0, {0})
    ids = embedded.encode("hello world")
    assert embedded.token_strings(ids)[-1] == "Ġworld"
    assert embedded.token_texts(ids)[-1] == " world"


def test_embedded_tokenizer_equals_the_tokenizer_of_a_folder_with_its_files(
    embedded: LocalTokenizer, tmp_path: Path
) -> None:
    """The size and the end of text of the embedded tokenizer are known before it is loaded."""
    folder = Path(shutil.copytree(huggingface.EMBEDDED, tmp_path / "copy"))
    copy = LocalTokenizer.from_path(folder)
    assert (copy.is_embedded, embedded.is_embedded) == (False, True)
    assert copy.vocab_size == embedded.vocab_size
    assert (copy.eos_token_id, copy.eos_token_ids) == (embedded.eos_token_id, {0})


def test_caches_of_words_appear_when_the_first_text_is_encoded() -> None:
    tokenizer = default_tokenizer()
    assert "words" not in tokenizer.caches
    tokenizer.encode("Hello!")
    assert {"words", "parts of texts"} < tokenizer.caches.keys()


@pytest.mark.parametrize("worst", [-1, 2**32, 2**63 - 1])
def test_invalid_token_id_raises_value_error(embedded: LocalTokenizer, worst: int) -> None:
    for use in (embedded.decode, embedded.pieces, embedded.token_strings, embedded.check_ids):
        with pytest.raises(TokenIdError, match=str(worst)):
            use([5, worst])
    assert issubclass(TokenIdError, ValueError)


def test_token_id_beyond_the_vocabulary_decodes_to_nothing(
    embedded: LocalTokenizer,
) -> None:
    assert embedded.vocab_size is not None
    beyond = embedded.vocab_size
    assert embedded.decode([beyond]) == ""
    assert embedded.pieces([beyond, *embedded.encode("x")]) == ["", "x"]
    assert embedded.token_strings([beyond]) == [""]
    embedded.check_ids([0, beyond - 1])
    with pytest.raises(TokenIdError):
        embedded.check_ids([beyond])


def test_encoding_a_text_with_a_lone_surrogate_raises_an_input_error(
    embedded: LocalTokenizer,
) -> None:
    for text in ("a\ud800b", "a\ud800b" * 1_000):
        with pytest.raises(TokenizerInputError, match="surrogate"):
            embedded.encode(text)


@pytest.mark.shared
def test_tokenizer_reproduces_the_recorded_ids(recorded: LocalTokenizer) -> None:
    assert recorded.encode("hello world") == [280, 76, 332, 1400, 1273]
    assert recorded.decode([338, 1402, 4025]) == "one two three"
    chat = [28, 92, 1495, 92, 30, 199, 2371, 199, 28, 92, 3510, 618, 897, 92, 30, 199]
    assert recorded.encode_chat([{"role": "user", "content": "hi"}]) == chat
    assert (recorded.eos_token_id, recorded.vocab_size) == (0, 4096)


def test_post_processor_adds_special_tokens_on_request(tmp_path: Path) -> None:
    content = json.loads((ROOT / "app/core/text/data/tokenizer.json").read_text(encoding="utf-8"))
    begin = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
        },
    }
    content["truncation"] = {
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
        "direction": "Right",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    tokenizer = LocalTokenizer.from_path(tmp_path)
    plain = tokenizer.encode("one two three")
    assert len(plain) == 3
    assert tokenizer.encode("one two three", add_special_tokens=True) == [0, *plain]
    assert tokenizer.encode_many(["one two three"], add_special_tokens=True) == [[0, *plain]]


def test_eos_token_ids_come_from_the_generation_config(tmp_path: Path) -> None:
    data = ROOT / "app/core/text/data"
    (tmp_path / "tokenizer.json").write_bytes((data / "tokenizer.json").read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    (tmp_path / "config.json").write_text(
        '{"eos_token_id": 1, "text_config": {"vocab_size": 7000}}'
    )
    tokenizer = LocalTokenizer.from_path(tmp_path)
    assert (tokenizer.eos_token_id, tokenizer.eos_token_ids) == (3, frozenset({3, 4}))
    assert tokenizer.vocab_size == 7000
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|user|>"}}')
    tokenizer = LocalTokenizer.from_path(tmp_path)
    assert (tokenizer.eos_token_id, tokenizer.eos_token_ids) == (2, frozenset({2, 3, 4}))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("other.json", "no tokenizer.json"),
        ("tokenizer.json", "not a tok"),
        ("tokenizer_config.json", "no tok"),
    ],
)
def test_folder_without_a_tokenizer_is_rejected(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(TokenizerLoadError, match=complaint):
        LocalTokenizer.from_path(tmp_path)


BARE = ChatOptions(add_generation_prompt=False)


@pytest.mark.parametrize("skip", [False, True])
def test_long_token_id_list_decodes_as_in_the_tokenizers_library(
    embedded: LocalTokenizer, skip: bool
) -> None:
    ids = Random(1).choices(range(6_144), k=60_000)
    assert embedded.decode(ids, skip) == embedded.backend.decode(ids, skip)


def test_tokenizer_caches_are_bounded_and_report_their_size(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "app/core/text/data", tmp_path, dirs_exist_ok=True)
    tokenizer = LocalTokenizer.from_path(tmp_path)
    sizes_before = {name: cache.size_bytes for name, cache in tokenizer.caches.items()}
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hello"}])
    tokenizer.pieces(ids)
    function = {"name": "f", "description": "Returns it. " * 9}
    tools = ChatOptions(tools=[{"function": function}], tools_key=b"f")
    for text in ("Hello", "Bye"):
        tokenizer.encode_chat([{"role": "user", "content": text}], tools)
    names = {"chat templates", "parts of texts", "texts with tools", "words"}
    assert sizes_before.keys() == names
    for name, cache in tokenizer.caches.items():
        assert sizes_before[name] < cache.size_bytes < cache.limit_bytes < 40_000_000, name


def test_long_conversation_renders_as_the_concatenated_messages(
    embedded: LocalTokenizer,
) -> None:
    chat = [{"role": "user", "content": f"Number {n}"} for n in range(1_000)]
    text = embedded.render_chat(chat)
    assert (
        text
        == "".join(embedded.render_chat([message], BARE) for message in chat) + "<|assistant|>\n"
    )
    assert embedded.encode_chat(chat) == embedded.encode(text)
    with pytest.raises(TokenizerInputError, match="surrogate"):
        embedded.encode_chat([*chat, {"role": "user", "content": "\ud800"}])
    with pytest.raises(ChatTemplateError, match="only parts of unknown types"):
        embedded.encode_chat([*chat, {"role": "user", "content": [{"type": "smell"}]}])


class MeetingBackend:
    """A library in which `parties` calls meet if they run at the same time."""

    pre_tokenizer = None
    """No text can be cut."""

    def __init__(self, parties: int) -> None:
        self.meeting = threading.Barrier(parties, timeout=0.3)

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[object]:
        with suppress(threading.BrokenBarrierError):
            self.meeting.wait()
        return [SimpleNamespace(ids=[]) for _ in texts]


@pytest.mark.parametrize(
    ("size", "parties", "met"),
    [
        (PIECE, 4, False),
        (PIECE, 3, True),
        (PIECE + 1, MAX_LONG_TEXTS + 1, False),
        (PIECE + 1, MAX_LONG_TEXTS, True),
    ],
)
def test_number_of_texts_encoded_concurrently_is_limited(
    monkeypatch: pytest.MonkeyPatch, size: int, parties: int, met: bool
) -> None:
    """Threads leave a core of four to the event loop.

    For each token, the library takes 250 bytes: 60 clients with texts of 4 MB took 3 GB.
    """
    monkeypatch.setattr(long_texts, "usable_cores", lambda: 4)
    tokenizer = default_tokenizer()
    backend = MeetingBackend(parties)
    monkeypatch.setattr(tokenizer, "_vocabulary", SimpleNamespace(backend=backend))
    calls = [gevent.spawn(tokenizer.encode_many, ["x" * size]) for _ in range(parties)]
    gevent.joinall(calls, raise_error=True)
    assert backend.meeting.broken is not met
