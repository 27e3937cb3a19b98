"""Tokenizers in GGUF files: `--tokenizer model.gguf`."""

import struct
from contextlib import suppress
from pathlib import Path

import pytest

from app.core.application import tokenizer_of
from app.core.built_in import read_tokenizer
from app.core.settings import load
from app.core.text.base import TokenizerLoadError
from app.core.text.huggingface import EMBEDDED, LocalTokenizer
from app.extensions.gguf.file import GGUFFile
from tests.hostile_files import damaged_files

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
KINDS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}


def text_bytes(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def value_bytes(value: object) -> tuple[int, bytes]:
    """The kind of a value in a head, and its bytes."""
    if isinstance(value, str):
        return 8, text_bytes(value)
    if isinstance(value, list):
        kinds = [value_bytes(item) for item in value]
        return 9, struct.pack("<IQ", kinds[0][0], len(kinds)) + b"".join(data for _, data in kinds)
    kind, code = KINDS[type(value)]
    return kind, struct.pack(f"<{code}", value)


def gguf_file(folder: Path, **fields: object) -> Path:
    """A file with the fields of a tokenizer."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields))
    for name, value in fields.items():
        kind, data = value_bytes(value)
        head += text_bytes(f"tokenizer.ggml.{name}") + struct.pack("<I", kind) + data
    path = folder / "model.gguf"
    path.write_bytes(head)
    return path


def tokens_of(path: Path, text: str) -> list[str]:
    """The tokens of a text."""
    tokenizer = LocalTokenizer.from_path(path, read_file=read_tokenizer)
    ids = tokenizer.encode(text)
    return tokenizer.token_strings(ids)


LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ", "1", "2", "3", "4", "5"]


def byte_level(folder: Path, pre: str, *tokens: str, merges: list[str]) -> Path:
    vocabulary = [*LETTERS, *tokens]
    return gguf_file(
        folder,
        model="gpt2",
        pre=pre,
        tokens=vocabulary,
        token_type=[NORMAL] * len(vocabulary),
        merges=merges,
    )


def test_words_of_llama_3_are_tokens_whatever_the_merges_say(tmp_path: Path) -> None:
    merges = ["a b", "c d"]
    path = byte_level(tmp_path, "llama-bpe", "ab", "cd", "abcd", merges=merges)
    assert tokens_of(path, "abcd") == ["abcd"]
    assert tokens_of(path, "abcdc") == ["ab", "cd", "c"]
    path = byte_level(tmp_path, "qwen2", "ab", "cd", "abcd", merges=merges)
    assert tokens_of(path, "abcd") == ["ab", "cd"]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["12345"]),
        ("falcon", ["123", "45"]),
        ("llama-bpe", ["123", "45"]),
        ("deepseek-llm", ["12345"]),
        ("deepseek-coder", [*"12345"]),
        ("qwen35", [*"12345"]),
        ("mpt", ["12345"]),
    ],
)
def test_pre_tokenizers_split_digits_as_their_models_do(
    tmp_path: Path, pre: str, pieces: list[str]
) -> None:
    tokens = ("12", "123", "45", "12345")
    merges = ["1 2", "12 3", "4 5", "123 45"]
    assert tokens_of(byte_level(tmp_path, pre, *tokens, merges=merges), "12345") == pieces


def sentence_piece(folder: Path, **fields: object) -> Path:
    pieces = ["<unk>", "<s>", "</s>", "<0xF0>", "<0x9F>", "<0xA6>", "<0x99>"]
    types = [UNKNOWN, CONTROL, CONTROL, BYTE, BYTE, BYTE, BYTE]
    tokens = [*pieces, *"▁abc", "▁a", "bc", "▁ab"]
    return gguf_file(
        folder,
        model="llama",
        tokens=tokens,
        token_type=[*types, *[NORMAL] * 7],
        scores=[0.0] * 11 + [-1.0, -2.0, -3.0],
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
        **fields,
    )


def test_sentence_piece_joins_the_tokens_with_the_highest_scores_first(tmp_path: Path) -> None:
    path = sentence_piece(tmp_path, add_bos_token=True)
    assert tokens_of(path, "abc ab") == ["▁a", "bc", "▁ab"]
    assert tokens_of(path, "🦙") == ["▁", "<0xF0>", "<0x9F>", "<0xA6>", "<0x99>"]
    tokenizer = LocalTokenizer.from_path(path, read_file=read_tokenizer)
    ids = tokenizer.encode("ab a", add_special_tokens=True)
    assert tokenizer.token_strings(ids)[0] == "<s>"
    assert tokenizer.decode(ids) == "ab a"


def test_word_piece_has_the_longest_tokens_of_each_word(tmp_path: Path) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁un", "aff", "able", "▁!"]
    path = gguf_file(
        tmp_path,
        model="bert",
        pre="bert-bge",
        tokens=tokens,
        token_type=[CONTROL] * 4 + [NORMAL] * 4,
        unknown_token_id=1,
        cls_token_id=2,
        seperator_token_id=3,
    )
    tokenizer = LocalTokenizer.from_path(path, read_file=read_tokenizer)
    assert tokenizer.encode("UNAFFABLE! zzz") == [4, 5, 6, 7, 1]
    assert tokenizer.encode("un", add_special_tokens=True) == [2, 4, 3]


def test_gemma_joins_blanks_with_the_words_after_them(tmp_path: Path) -> None:
    tokens = ["<unk>", *"▁ab\n", "▁a", "▁ab"]
    path = gguf_file(
        tmp_path,
        model="gemma4",
        tokens=tokens,
        token_type=[UNKNOWN] + [NORMAL] * 6,
        merges=["▁ a", "▁a b"],
        unknown_token_id=0,
        add_space_prefix=False,
    )
    assert tokens_of(path, "a ab\nb") == ["a", "▁ab", "\n", "b"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": "t5"}, "has a tokenizer of type t5; only gpt2, llama, gemma4, bert"),
        ({"model": "gpt2", "pre": "unheard"}, "uses the pre-tokenizer unheard; only gpt-2"),
        ({"model": "gpt2"}, "uses the pre-tokenizer missing"),
        ({"pre": "gpt-2"}, "has no tokenizer"),
    ],
)
def test_other_vocabulary_is_refused_by_its_name(
    tmp_path: Path, fields: dict[str, object], reason: str
) -> None:
    path = gguf_file(tmp_path, **fields)
    with pytest.raises(TokenizerLoadError) as caught:
        LocalTokenizer.from_path(path, read_file=read_tokenizer)
    assert str(caught.value).startswith(f"{path} {reason}")


def test_setting_names_a_gguf_file(tmp_path: Path) -> None:
    path = sentence_piece(tmp_path)
    settings = load(("--tokenizer", str(path)), {})
    tokenizer = tokenizer_of(settings)
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab"
    assert tokenizer.vocab_size == 14
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TokenizerLoadError, match="is truncated or is not a GGUF file"):
        tokenizer_of(settings)


def test_file_of_another_format_is_not_read_as_gguf(tmp_path: Path) -> None:
    assert read_tokenizer(EMBEDDED / "tokenizer.json") is None
    path = sentence_piece(tmp_path).rename(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerLoadError, match="is not a tokenizer"):
        LocalTokenizer.from_path(path, read_file=read_tokenizer)


def test_damaged_file_is_read_or_refused_with_a_line_that_names_it(tmp_path: Path) -> None:
    good = byte_level(tmp_path, "llama-bpe", "ab", merges=["a b"]).read_bytes()
    contents = damaged_files(good)
    for place in range(4, len(good) - 8, 7):
        for number in (2**64 - 1, 2**63, 2**40, 0):
            sizes = struct.pack("<Q", number)
            contents[f"{number} at {place}"] = good[:place] + sizes + good[place + 8 :]
    path = tmp_path / "damaged.gguf"
    for name, content in contents.items():
        path.write_bytes(content)
        try:
            LocalTokenizer.from_path(path, read_file=read_tokenizer).encode("hello ab")
        except TokenizerLoadError as error:
            assert "\n" not in str(error), name
            assert str(path) in str(error), name


WRONG = ("x", 1, 1.5, True, ["x"], [1], [1.5], [""], [0xFFFFFFFF] * 3, float("nan"), None)


@pytest.mark.parametrize("model", ["gpt2", "llama", "bert"])
def test_field_of_another_type_is_read_or_refused(tmp_path: Path, model: str) -> None:
    fields: dict[str, object] = {
        "model": model,
        "pre": "llama-bpe",
        "tokens": [*LETTERS, "ab"],
        "token_type": [NORMAL] * (len(LETTERS) + 1),
        "merges": ["a b"],
        "scores": [1.0] * (len(LETTERS) + 1),
        "bos_token_id": 1,
        "add_bos_token": True,
        "unknown_token_id": 0,
    }
    for name in fields:
        for value in WRONG:
            changed = {**fields, name: value}
            if value is None:
                del changed[name]
            path = gguf_file(tmp_path, **changed)
            with suppress(TokenizerLoadError):
                LocalTokenizer.from_path(path, read_file=read_tokenizer).encode("hello \U0010fffd")


LONG = 1 << 63
TEXT_FIELD = struct.pack("<Q3sI", 3, b"a.b", 8)
ARRAY_FIELD = struct.pack("<Q3sII", 3, b"a.b", 9, 8)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (struct.pack("<QQ", 0, LONG), "9,223,372,036,854,775,808 fields are more than"),
        (struct.pack("<QQ", LONG, 0), "9,223,372,036,854,775,808 tensors are more than"),
        (struct.pack("<QQ", 0, 1) + TEXT_FIELD + struct.pack("<Q", LONG), "a text of 9,223,372,"),
        (struct.pack("<QQ", 0, 1) + ARRAY_FIELD + struct.pack("<Q", LONG), "808 members"),
        (struct.pack("<QQQ", 0, 1, LONG), "a text of 9,223,372,036,854,775,808 bytes is longer"),
        (struct.pack("<QQQ", 1, 0, 0) + b"\xff" * 40, "4,294,967,295 dimensions are more than"),
        (struct.pack("<QQ", 0, 1) + TEXT_FIELD + struct.pack("<Q2s", 2, b"\xff\xfe"), "not UTF-8"),
    ],
)
def test_length_beyond_the_end_of_the_file_is_named(
    tmp_path: Path, head: bytes, reason: str
) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + head + bytes(40))
    with pytest.raises(TokenizerLoadError, match=reason):
        GGUFFile(path)


def test_vocabulary_without_tokens_is_refused(tmp_path: Path) -> None:
    model = '{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'
    (tmp_path / "tokenizer.json").write_text(model)
    with pytest.raises(TokenizerLoadError, match="is a tokenizer without tokens"):
        LocalTokenizer.from_path(tmp_path)
