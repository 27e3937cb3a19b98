"""The same model out of a GGUF file: names, orders and quantisations."""

import json
from operator import attrgetter
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from app.core.text.huggingface import EMBEDDED, LocalTokenizer, default_tokenizer
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.gguf_file import GGUFFile
from app.extensions.llm.gguf_weights import HUB_NAMES, read_gguf, read_tensor
from app.extensions.llm.model_files import load_tokenizer
from tests.extensions.llm.tiny import Shape, generate, make_engine, make_model, prompts

pytestmark = pytest.mark.engine

HEADS = 4
KV_HEADS = 2


GGUF_PARTS = {hub: own_name for own_name, hub in HUB_NAMES.items()}


def gguf_name(name: str) -> str:
    """`blk.0.ffn_up.weight` for `model.layers.0.mlp.up_proj.weight`."""
    stem, _, kind = name.rpartition(".")
    if stem in GGUF_PARTS:
        return f"{GGUF_PARTS[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{GGUF_PARTS.get(part, part)}.{kind}"


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(
    folder: Path,
    file: Path,
    kind: str,
    leave_out: str = "",
    quantised: str = "F32",
    feed_forward: int = 96,
) -> None:
    writer = gguf.GGUFWriter(file, kind)
    numbers_of = {
        "block_count": 2,
        "context_length": 1024,
        "embedding_length": 64,
        "head_count": HEADS,
    }
    numbers_of |= {"head_count_kv": KV_HEADS, "key_length": 16, "layer_norm_rms_eps": 1e-6}
    numbers_of |= {
        "feed_forward_length": feed_forward,
        "rope_freq_base": 10_000.0,
        "eos_token_id": 5,
    }
    for name, value in numbers_of.items():
        getattr(writer, f"add_{name}")(value)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name == leave_out:
            continue
        numbers = tensor.float()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = HEADS if "q_proj" in name else KV_HEADS
            numbers = numbers.reshape(heads, 2, -1, 64).transpose(1, 2).reshape(numbers.shape)
        if numbers.ndim == 2 and quantised != "F32":
            to = gguf.GGMLQuantizationType[quantised]
            writer.add_tensor(gguf_name(name), quantize(numbers.numpy(), to), raw_dtype=to)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(numbers.numpy()))
    finish(writer)


@pytest.mark.parametrize(
    "shape",
    [Shape("llama"), Shape("qwen2", tied=True), Shape("qwen3")],
    ids=attrgetter("kind"),
)
def test_gguf_file_generates_the_same_tokens_as_the_model_folder(
    shape: Shape, tmp_path: Path
) -> None:
    make_model(tmp_path, shape)
    file = tmp_path / "model.gguf"
    wanted = prompts(4)
    write(tmp_path, file, shape.kind)
    checkpoint = read_gguf(file)
    assert (checkpoint.config.tied, checkpoint.eos_token_ids) == (shape.tied, {5})
    (folder := tmp_path / "eps").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((tmp_path / name).read_bytes())
    assert generate(make_engine(file), wanted) == generate(make_engine(folder), wanted)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q4_0"])
def test_decoded_gguf_weights_equal_those_of_the_gguf_package(kind: str, tmp_path: Path) -> None:
    make_model(tmp_path)
    write(tmp_path, path := tmp_path / "model.gguf", "llama", quantised=kind)
    file = GGUFFile(path)
    theirs = gguf.GGUFReader(path)
    assert set(file.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        wanted = dequantize(tensor.data, tensor.tensor_type)
        assert (
            read_tensor(file, tensor.name).numpy().tobytes() == wanted.astype(np.float32).tobytes()
        )
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            assert file.fields[name] == field.contents()
    assert generate(make_engine(path), prompts(2)) and load_tokenizer(path) is None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("gguf")
    make_model(folder)
    write(folder, folder / "model.gguf", "llama")
    return folder, (folder / "model.gguf").read_bytes()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    place=st.integers(0, 2500),
    change=st.binary(min_size=1, max_size=9),
    end=st.none() | st.integers(0, 60_000),
)
def test_corrupt_gguf_file_raises_only_one_line_errors(
    whole: tuple[Path, bytes], place: int, change: bytes, end: int | None
) -> None:
    folder, content = whole
    (spoiled := folder / "spoiled.gguf").write_bytes(
        (content[:place] + change + content[place + len(change) :])[:end]
    )
    try:
        file = GGUFFile(spoiled)
        for name in file.tensors:
            read_tensor(file, name)
    except ModelLoadError as error:
        assert "\n" not in str(error)


def test_error_for_an_unusable_gguf_file_states_the_reason(tmp_path: Path) -> None:
    make_model(tmp_path)
    file = tmp_path / "model.gguf"
    name = "model.layers.0.mlp.down_proj.weight"
    for kind, changes, message in (
        ("llama", {"leave_out": name}, rf"do not contain the tensor {name}"),
        ("gemma", {}, "The architecture gemma is not supported"),
        (
            "llama",
            {"quantised": "Q5_0"},
            r"token_embd.weight is of type 6; only F32, .* are supported",
        ),
        (
            "llama",
            {"feed_forward": 95},
            r"mlp.gate_proj.weight has the shape \[96, 64\], .* requires \[95, 64\]",
        ),
    ):
        write(tmp_path, file, kind, **changes)
        with pytest.raises(ModelLoadError, match=message):
            make_engine(file)
    for content in (b"", b"GGUF" + bytes(200), b"no such file" * 50, file.read_bytes()[:-100]):
        file.write_bytes(content)
        with pytest.raises(ModelLoadError):
            make_engine(file)


def write_tokenizer(path: Path, words: str, merges: list[str] | None = None) -> None:
    described = json.loads((EMBEDDED / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = described["model"]["vocab"]
    lines = [
        " ".join(merge) if isinstance(merge, list) else merge
        for merge in described["model"]["merges"]
    ]
    special = {token["content"] for token in described["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges(lines if merges is None else merges)
    writer.add_eos_token_id(vocabulary["<|endoftext|>"])
    writer.add_chat_template("{{ messages[0].content }}{{ eos_token }}")
    finish(writer)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LocalTokenizer:
    write_tokenizer(path := tmp_path_factory.mktemp("words") / "model.gguf", "gpt-2")
    return load_tokenizer(path)


@settings(max_examples=25, deadline=None)
@given(text=st.text() | st.text("ab 1'\n<|endoftext|>"))
def test_gguf_tokenizer_gives_the_token_ids_of_the_original_tokenizer(
    tokenizer: LocalTokenizer, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert ids == default_tokenizer().encode(text)
    assert tokenizer.decode(ids, False) == text


def test_chat_template_and_eos_tokens_are_read_from_the_gguf_file(
    tokenizer: LocalTokenizer,
) -> None:
    eos = default_tokenizer().backend.token_to_id("<|endoftext|>")
    assert tokenizer.eos_token_ids == {eos}
    assert tokenizer.encode_chat([{"role": "user", "content": "Hello"}]) == [
        *tokenizer.encode("Hello"),
        eos,
    ]


def test_digits_are_split_as_the_pre_tokenizer_type_requires(tmp_path: Path) -> None:
    for words, pieces in (
        ("gpt-2", "2024"),
        ("smollm", "2 0 2 4"),
        ("qwen2", "2 0 2 4"),
        ("llama-bpe", "202 4"),
    ):
        write_tokenizer(path := tmp_path / "model.gguf", words)
        cutter = load_tokenizer(path).backend.pre_tokenizer
        assert [piece for piece, _ in cutter.pre_tokenize_str("2024")] == pieces.split()


def test_unusable_gguf_tokenizers_are_rejected(tmp_path: Path) -> None:
    write_tokenizer(path := tmp_path / "model.gguf", "unheard-of")
    with pytest.raises(
        ModelLoadError, match="uses the pre-tokenizer unheard-of; only .*qwen2, .* are supported"
    ):
        load_tokenizer(path)
    write_tokenizer(path, "gpt-2", merges=["neither nor"])
    with pytest.raises(ModelLoadError, match="has no usable tokenizer"):
        load_tokenizer(path)
