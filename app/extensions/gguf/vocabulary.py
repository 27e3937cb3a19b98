"""Tokenizers in the heads of GGUF files, as llama.cpp's converter writes them.

Kinds are byte-level BPE (`gpt2`), BPE of SentencePiece (`llama`, and `gemma4` with merges), and
WordPiece (`bert`). Start with `read_tokenizer`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from app.core.text.base import TokenizerLoadError
from app.core.text.files import DEFAULT_TEMPLATE, TokenizerFolder
from app.extensions.gguf.file import GGUFFile

NORMAL = 1
CONTROL = 3
"""Kind of control tokens in GGUF files."""
USER_DEFINED = 4
"""Kind of tokens that the model's user added."""
BYTE = 6
BLANK = "▁"
"""Stands for a blank in tokens of SentencePiece, and for the start of a word in WordPiece."""
CONTINUATION = "##"
"""Prefix of a token of WordPiece within a word, in the `tokenizers` library."""
MAX_WORD_CHARACTERS = 1 << 20
GPT2_PATTERN: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?{LETTERS}+|{DIGITS}"
    r"| ?[^\s{MARKS}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HAN: Final = "[一-龥ࠀ-一가-퟿]+"


def _words(letters: str, digits: str) -> str:
    pattern = WORDS.replace("{LETTERS}", letters).replace("{DIGITS}", digits)
    return pattern.replace("{MARKS}", letters.strip("[]"))


PATTERNS: Final[Mapping[str, Sequence[str]]] = {
    "gpt-2": (GPT2_PATTERN,),
    "mpt": (GPT2_PATTERN,),
    "smollm": (r"\p{N}", GPT2_PATTERN),
    "starcoder": (r"\p{N}", GPT2_PATTERN),
    "refact": (r"\p{N}", GPT2_PATTERN),
    "command-r": (r"\p{N}", GPT2_PATTERN),
    "qwen2": (_words(r"\p{L}", r"\p{N}"),),
    "qwen35": (_words(r"[\p{L}\p{M}]", r"\p{N}"),),
    "llama-bpe": (_words(r"\p{L}", r"\p{N}{1,3}"),),
    "falcon": (r"[\p{P}$+<=>^~|`]+", GPT2_PATTERN, "[0-9][0-9][0-9]"),
    "deepseek-llm": (
        r"[\r\n]",
        r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        HAN,
        r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}"),
}
"""Patterns that split a text one after the other, by the names of pre-tokenizers."""
WHOLE_WORDS: Final = frozenset(("llama-bpe",))
"""Pre-tokenizers whose words are tokens if the vocabulary has them, without regard to merges."""
SPECIAL_TOKENS: Final = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",  # codespell:ignore seperator
    "cls_token": "cls",
    "mask_token": "mask",
}
"""Role of a special token -> name in GGUF files, which misspell the name of the separator."""

UNKNOWN_TEXT: Final = "a \U0010fffd"
"""A text that some models cannot encode without a token for unknown ones."""


class GGUFVocabulary:
    """The vocabulary in the head of a GGUF file."""

    def __init__(self, path: Path, fields: Mapping[str, object]) -> None:
        self.path = path
        self.kind = str(fields.get("tokenizer.ggml.model"))
        self.pre_tokenizer = str(fields.get("tokenizer.ggml.pre", "missing"))
        self._fields = fields
        self.tokens = self.items("tokens")
        self.types = self.items("token_type")
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}

    def items(self, name: str) -> list[Any]:
        """Returns a list; an empty one for a missing list."""
        value = self._fields.get(f"tokenizer.ggml.{name}")
        return value if isinstance(value, list) else []

    def is_set(self, name: str, default: bool) -> bool:
        """Returns a switch."""
        value = self._fields.get(f"tokenizer.ggml.{name}", default)
        return value if isinstance(value, bool) else default

    def token_of(self, name: str) -> str | None:
        """Returns the token with a role, such as `bos`."""
        token_id = self._fields.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(self.tokens):
            token: str = self.tokens[token_id]
            return token
        return None

    def merges(self) -> list[tuple[str, str]]:
        """Returns the pairs of tokens that are joined, in order."""
        pairs: list[tuple[str, str]] = []
        for merge in self.items("merges"):
            left, _, right = merge.partition(" ")
            pairs.append((left, right))
        return pairs

    def added(self) -> list[AddedToken]:
        """Returns the tokens that are found in a text before it is split."""
        return [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=False)
            if kind in (CONTROL, USER_DEFINED)
        ]

    def refuse(self, reason: str) -> TokenizerLoadError:
        """Returns the error for a vocabulary of another form."""
        return TokenizerLoadError(f"{self.path} {reason}.")


def read_tokenizer(path: Path) -> tuple[Tokenizer, TokenizerFolder]:
    """Returns the tokenizer in the head of a file, with its special tokens and templates.

    Raises:
        TokenizerLoadError: the file has none, or one of another kind.
    """
    fields = GGUFFile(path).fields
    backend = read_backend(path, fields)
    if backend is None:
        raise TokenizerLoadError(f"{path} has no tokenizer.")
    return backend, read_folder_of(path, fields)


def read_backend(path: Path, fields: Mapping[str, object]) -> Tokenizer | None:
    """Returns the tokenizer in the head of the file at `path`; None without one.

    Raises:
        TokenizerLoadError: the tokenizer is of another kind, or unusable.
    """
    if "tokenizer.ggml.model" not in fields:
        return None
    vocabulary = GGUFVocabulary(path, fields)
    builders: Mapping[str, Callable[[GGUFVocabulary], Tokenizer]] = {
        "gpt2": _byte_level,
        "llama": _sentence_piece,
        "gemma4": _gemma,
        "bert": _word_piece,
    }
    build = builders.get(vocabulary.kind)
    if build is None:
        raise vocabulary.refuse(
            f"has a tokenizer of type {vocabulary.kind}; only {', '.join(builders)} are supported"
        )
    try:
        backend = build(vocabulary)
        backend.add_tokens(vocabulary.added())
        _add_ends(backend, vocabulary)
        backend.encode(UNKNOWN_TEXT)
    except TokenizerLoadError:
        raise
    except Exception as error:  # the library raises bare Exception
        reason = " ".join(str(error).split())
        raise vocabulary.refuse(f"has no usable tokenizer: {reason}") from error
    return backend


def read_folder_of(
    path: Path, fields: Mapping[str, object], chat_template: str | None = None
) -> TokenizerFolder:
    """Returns special tokens and chat templates in the head of a file."""
    vocabulary = GGUFVocabulary(path, fields)
    special_tokens: dict[str, str] = {}
    for role, name in SPECIAL_TOKENS.items():
        token = vocabulary.token_of(name)
        if token is not None:
            special_tokens[role] = token
    template = chat_template or fields.get("tokenizer.chat_template")
    templates: dict[str, str] = {}
    if isinstance(template, str):
        templates[DEFAULT_TEMPLATE] = template
    return TokenizerFolder(
        tokenizer_file=path,
        special_tokens=special_tokens,
        chat_templates=templates,
        takes_media=False,
    )


def _add_ends(backend: Tokenizer, vocabulary: GGUFVocabulary) -> None:
    """Adds the tokens that surround each text, where the file asks for them."""
    is_bert = vocabulary.kind == "bert"
    start = vocabulary.token_of("cls" if is_bert else "bos")
    end = vocabulary.token_of("seperator" if is_bert else "eos")  # codespell:ignore seperator
    parts: list[str] = ["$A"]
    if start is not None and vocabulary.is_set("add_bos_token", is_bert):
        parts.insert(0, start)
    if end is not None and vocabulary.is_set("add_eos_token", is_bert):
        parts.append(end)
    if len(parts) == 1:
        return
    special = [(token, vocabulary.ids[token]) for token in {*parts} - {"$A"}]
    backend.post_processor = processors.TemplateProcessing(single=parts, special_tokens=special)


def _byte_level(vocabulary: GGUFVocabulary) -> Tokenizer:
    name = vocabulary.pre_tokenizer
    if name not in PATTERNS:
        raise vocabulary.refuse(
            f"uses the pre-tokenizer {name}; only {', '.join(PATTERNS)} are supported"
        )
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=vocabulary.merges(),
            ignore_merges=name in WHOLE_WORDS,
        )
    )
    backend.decoder = decoders.ByteLevel()
    if PATTERNS[name] == (GPT2_PATTERN,):  # the library's own pattern, whose words are cached
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return backend
    splits = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in PATTERNS[name]
    ]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    return backend


def _sentence_piece(vocabulary: GGUFVocabulary) -> Tokenizer:
    """Builds the BPE of SentencePiece: two neighbors join if their text is a token.

    Pairs with higher scores join first.
    """
    scores = vocabulary.items("scores")
    pairs: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, kind, score in zip(vocabulary.tokens, vocabulary.types, scores, strict=False):
        if kind != NORMAL:
            continue
        for index in range(1, len(token)):
            left = vocabulary.ids.get(token[:index])
            right = vocabulary.ids.get(token[index:])
            if left is not None and right is not None:
                pairs.append((-score, left, right, (token[:index], token[index:])))
    pairs.sort()
    backend = _with_byte_fallback(vocabulary, [pair for *_, pair in pairs])
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", BLANK)]
    if vocabulary.is_set("add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(BLANK))
    backend.normalizer = normalizers.Sequence(steps)
    return backend


def _gemma(vocabulary: GGUFVocabulary) -> Tokenizer:
    """Builds a BPE of whole lines, whose merges are in the file."""
    backend = _with_byte_fallback(vocabulary, vocabulary.merges())
    backend.normalizer = normalizers.Replace(" ", BLANK)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), behavior="isolated")
    return backend


def _with_byte_fallback(vocabulary: GGUFVocabulary, merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """Builds a BPE whose unknown characters become tokens of their bytes."""
    backend = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=merges,
            unk_token=vocabulary.token_of("unknown"),
            fuse_unk=True,
            byte_fallback=BYTE in vocabulary.types,
        )
    )
    steps = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.is_set("add_space_prefix", True):
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _word_piece(vocabulary: GGUFVocabulary) -> Tokenizer:
    """Builds WordPiece; the file marks the start of a word, and the library what continues it."""
    ids: dict[str, int] = {}
    for token_id, (token, kind) in enumerate(
        zip(vocabulary.tokens, vocabulary.types, strict=False)
    ):
        if kind == NORMAL:
            if token.startswith(BLANK):
                token = token.removeprefix(BLANK)
            else:
                token = CONTINUATION + token
        ids.setdefault(token, token_id)
    backend = Tokenizer(
        models.WordPiece(
            vocab=ids,
            unk_token=vocabulary.token_of("unknown") or "[UNK]",
            continuing_subword_prefix=CONTINUATION,
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
        )
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=True, lowercase=True
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return backend
