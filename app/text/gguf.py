"""Tokenizers in the heads of GGUF files, as llama.cpp's converter writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from app.text.base import TokenizerLoadError
from app.text.files import DEFAULT_TEMPLATE, TokenizerFolder
from app.text.huggingface import LocalTokenizer

CONTROL, USER_DEFINED = 3, 4
"""Kinds of tokens in GGUF files."""
PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|{DIGITS}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS: Final = {
    "qwen2": PATTERN.replace("{DIGITS}", r"\p{N}"),
    "llama-bpe": PATTERN.replace("{DIGITS}", r"\p{N}{1,3}"),
}
DIGITS_APART: Final = ("smollm", "starcoder", "refact", "command-r")
"""Names in GGUF files of pre-tokenizers with single digits and GPT-2's pattern.

`PATTERNS` has the pre-tokenizers with other patterns; gpt-2 is GPT-2's pattern alone."""


def read_tokenizer(
    path: Path, fields: Mapping[str, object], chat_template: str | None = None
) -> LocalTokenizer | None:
    """Returns the tokenizer of a byte-level vocabulary with merges; None without one.

    `fields` has the head of the file at `path`. Raises TokenizerLoadError for another kind.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind is None:
        return None
    if kind != "gpt2":
        raise TokenizerLoadError(f"{path} has a tokenizer of the kind {kind}; only gpt2 is read.")
    tokens, merged, kinds = (
        value if isinstance(value := fields.get(f"tokenizer.ggml.{name}"), list) else []
        for name in ("tokens", "merges", "token_type")
    )
    words, merges = _words(path, fields), [tuple(merge.split(" ", 1)) for merge in merged]
    added = [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (CONTROL, USER_DEFINED)
    ]
    try:
        backend = Tokenizer(
            models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
        )
        backend.decoder = decoders.ByteLevel()
        backend.add_tokens(added)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerLoadError(f"{path} has no tokenizer that can be used: {error}.") from error
    backend.pre_tokenizer = words
    special = {}
    for role, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = fields.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            special[f"{role}_token"] = tokens[number]
    template = chat_template or fields.get("tokenizer.chat_template")
    templates = {DEFAULT_TEMPLATE: template} if isinstance(template, str) else {}
    folder = TokenizerFolder(
        tokenizer_file=path, special_tokens=special, chat_templates=templates, takes_media=False
    )
    return LocalTokenizer(backend, folder, path.stem)


def _words(path: Path, fields: Mapping[str, object]) -> pre_tokenizers.PreTokenizer:
    name = fields.get("tokenizer.ggml.pre")
    if name in PATTERNS:
        cut = pre_tokenizers.Split(Regex(PATTERNS[str(name)]), behavior="isolated")
        return pre_tokenizers.Sequence(
            [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in DIGITS_APART:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    if name != "gpt-2":
        known = ", ".join((*PATTERNS, *DIGITS_APART, "gpt-2"))
        raise TokenizerLoadError(
            f"{path} cuts texts into words as {name} does; only {known} are known."
        )
    return plain
