"""A tokenizer of the `tokenizers` library, prepared for many short texts."""

from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders

from app.core.text.detokenization import TokenBytes, TokenTexts
from app.core.text.words import WordEncoder, has_independent_words


class Vocabulary:
    """Tokens of `backend`, which must not be changed afterwards."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        # A file may have settings from training that cut or pad every text.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        added = backend.get_added_tokens_decoder().items()
        self.special_ids = frozenset(token_id for token_id, token in added if token.special)
        # The last id follows from the count unless the vocabulary has holes, which are rare and
        # slow to find.
        count = backend.get_vocab_size(with_added_tokens=True)
        if backend.id_to_token(count - 1) is None or backend.id_to_token(count) is not None:
            count = max(backend.get_vocab().values()) + 1
        self.size: int = count
        self.is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self.bytes = TokenBytes(backend)
        self.texts = TokenTexts(self.bytes)
        self.words = WordEncoder(backend) if has_independent_words(backend) else None
        self.adds_special_tokens = backend.num_special_tokens_to_add(False) > 0


@cache
def shared_backend(path: Path) -> tokenizers.Tokenizer:
    """Returns the library's tokenizer of a file, which all applications of a process share."""
    return tokenizers.Tokenizer.from_buffer(path.read_bytes())
