"""Tokenizers in the heads of GGUF files, as llama.cpp's converter writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from app.core.text.base import TokenizerLoadError
from app.core.text.files import DEFAULT_TEMPLATE, TokenizerFolder
from app.core.text.huggingface import LocalTokenizer

CONTROL = 3
"""Kind of control tokens in GGUF files."""
USER_DEFINED = 4
"""Kind of tokens that the model's user added."""
PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|{DIGITS}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS: Final = {
    "qwen2": PATTERN.replace("{DIGITS}", r"\p{N}"),
    "llama-bpe": PATTERN.replace("{DIGITS}", r"\p{N}{1,3}"),
}
SINGLE_DIGITS: Final = ("smollm", "starcoder", "refact", "command-r")
"""Names in GGUF files of pre-tokenizers with single digits and GPT-2's pattern.

`PATTERNS` has the pre-tokenizers with other patterns; gpt-2 is GPT-2's pattern alone.
"""
SPECIAL_TOKENS: Final = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}
"""Role of a special token -> name in GGUF files."""


def read_tokenizer(
    path: Path, fields: Mapping[str, object], chat_template: str | None = None
) -> LocalTokenizer | None:
    """Returns the tokenizer of a byte-level vocabulary with merges; None without one.

    `fields` has the head of the file at `path`.

    Raises:
        TokenizerLoadError: the tokenizer is of another kind.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind is None:
        return None
    if kind != "gpt2":
        raise TokenizerLoadError(f"{path} has a tokenizer of type {kind}; only gpt2 is supported.")
    tokens = _list_field(fields, "tokens")
    pre_tokenizer = _pre_tokenizer(path, fields)
    merges = [tuple(merge.split(" ", 1)) for merge in _list_field(fields, "merges")]
    added = [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, _list_field(fields, "token_type"), strict=False)
        if kind in (CONTROL, USER_DEFINED)
    ]
    try:
        vocab = {token: token_id for token_id, token in enumerate(tokens)}
        backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        backend.decoder = decoders.ByteLevel()
        backend.add_tokens(added)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerLoadError(f"{path} has no usable tokenizer: {error}.") from error
    backend.pre_tokenizer = pre_tokenizer
    special_tokens = {}
    for role, name in SPECIAL_TOKENS.items():
        token_id = fields.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            special_tokens[role] = tokens[token_id]
    template = chat_template or fields.get("tokenizer.chat_template")
    templates = {}
    if isinstance(template, str):
        templates[DEFAULT_TEMPLATE] = template
    folder = TokenizerFolder(
        tokenizer_file=path,
        special_tokens=special_tokens,
        chat_templates=templates,
        takes_media=False,
    )
    return LocalTokenizer(backend, folder, path.stem)


def _list_field(fields: Mapping[str, object], name: str) -> list[Any]:
    value = fields.get(f"tokenizer.ggml.{name}")
    if isinstance(value, list):
        return value
    return []


def _pre_tokenizer(path: Path, fields: Mapping[str, object]) -> pre_tokenizers.PreTokenizer:
    name = fields.get("tokenizer.ggml.pre")
    if name in PATTERNS:
        split = pre_tokenizers.Split(Regex(PATTERNS[str(name)]), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, byte_level])
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if name != "gpt-2":
        names = ", ".join((*PATTERNS, *SINGLE_DIGITS, "gpt-2"))
        raise TokenizerLoadError(
            f"{path} uses the pre-tokenizer {name}; only {names} are supported."
        )
    return gpt2
