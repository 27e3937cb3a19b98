"""Tiny random models in GGUF files, of architectures that the engine itself does not know."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import numpy

VOCABULARY = 320
HIDDEN = 64
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_SIZE = 16
FEED_FORWARD = 96
CONTEXT = 1024
UNKNOWN, BEGIN, END = 0, 1, 2
ASCII_BYTES = 128
SPECIAL_NAMES = ("<unk>", "<s>", "</s>")

ARCHITECTURES = ("llama", "llama3.2", "gemma3", "granite", "phi3", "qwen3")
"""Architectures; llama3.2 is a llama with scaled rotary frequencies."""
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def make_gguf(path: Path, name: str = "llama", seed: int = 7) -> Path:
    """Writes a random model, the same one each time."""
    architecture = name.partition("3.2")[0]
    random = numpy.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(0)
    if architecture in ("gemma3", "phi3"):
        writer.add_sliding_window(32)
    if architecture == "granite":
        writer.add_logit_scale(2.0)
        writer.add_float32("granite.residual_scale", 0.5)
        writer.add_float32("granite.embedding_scale", 4.0)
        writer.add_float32("granite.attention.scale", 0.3)
    _add_vocabulary(writer)
    for tensor_name, shape in _tensors(name).items():
        values = random.normal(0.0, 0.2, shape)
        if "norm" in tensor_name:
            values += 1.0
        if tensor_name == "rope_freqs.weight":
            values = numpy.linspace(1.0, 8.0, shape[0])
        writer.add_tensor(tensor_name, values.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Adds special tokens, bytes of ASCII, letters and words, as SentencePiece has them.

    No token is a part of a character, so the library's server reports every token.
    """
    tokens = list(SPECIAL_NAMES) + [f"<0x{value:02X}>" for value in range(ASCII_BYTES)]
    tokens.append("▁")
    tokens += [chr(ord("a") + index) for index in range(26)]
    kinds = [2, 3, 3] + [6] * ASCII_BYTES + [1] * 27
    while len(tokens) < VOCABULARY:
        kinds.append(1)
        tokens.append(f"▁w{len(tokens)}")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(VOCABULARY)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


def _tensors(name: str) -> Mapping[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    if name == "llama3.2":
        shapes["rope_freqs.weight"] = (HEAD_SIZE // 2,)
    if name == "phi3":
        shapes["output.weight"] = (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        for part, shape in _layer_tensors(name):
            shapes[f"blk.{layer}.{part}.weight"] = shape
    return shapes


def _layer_tensors(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    queries = HEADS * HEAD_SIZE
    keys = KV_HEADS * HEAD_SIZE
    yield "attn_norm", (HIDDEN,)
    yield "ffn_norm", (HIDDEN,)
    yield "attn_output", (HIDDEN, queries)
    yield "ffn_down", (HIDDEN, FEED_FORWARD)
    if name == "phi3":
        yield "attn_qkv", (queries + 2 * keys, HIDDEN)
        yield "ffn_up", (2 * FEED_FORWARD, HIDDEN)
        return
    yield "attn_q", (queries, HIDDEN)
    yield "attn_k", (keys, HIDDEN)
    yield "attn_v", (keys, HIDDEN)
    yield "ffn_gate", (FEED_FORWARD, HIDDEN)
    yield "ffn_up", (FEED_FORWARD, HIDDEN)
    if name in ("gemma3", "qwen3"):
        yield "attn_q_norm", (HEAD_SIZE,)
        yield "attn_k_norm", (HEAD_SIZE,)
    if name == "gemma3":
        yield "post_attention_norm", (HIDDEN,)
        yield "post_ffw_norm", (HIDDEN,)
