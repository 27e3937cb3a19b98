"""Incremental detokenization: the sum of the pieces is the text."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream
from tokenizers.pre_tokenizers import ByteLevel

from app.core.text.detokenization import byte_symbols
from app.core.text.huggingface import LocalTokenizer, default_tokenizer

TOKENIZER = default_tokenizer()
any_ids = st.lists(
    st.integers(0, 6143) | st.integers(5, 260) | st.just(0) | st.just(9_999_999), max_size=40
)


@given(any_ids, st.booleans())
def test_concatenated_token_texts_equal_the_decoded_text(ids: list[int], skip: bool) -> None:
    pieces = TOKENIZER.pieces(ids, skip)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == TOKENIZER.decode(ids, skip)


@given(st.text(max_size=40))
@settings(max_examples=40, deadline=None)
def test_valid_text_is_split_as_by_the_tokenizers_decode_stream(text: str) -> None:
    ids = TOKENIZER.encode(text)
    stream = DecodeStream(skip_special_tokens=True)
    streamed = [stream.step(TOKENIZER.backend, token_id) or "" for token_id in ids]
    pieces = TOKENIZER.pieces(ids)
    # The library never gives out a text that ends with U+FFFD; here it comes with the last token.
    assert pieces[:-1] == streamed[:-1]
    assert "".join(pieces) == text or "<|" in text


def bytes_of(tokenizer: LocalTokenizer, raw: bytes) -> list[int]:
    symbols = {byte: symbol for symbol, byte in byte_symbols().items()}
    return [tokenizer.backend.token_to_id(symbols[byte]) for byte in raw]


def test_character_is_in_the_text_of_the_token_that_completes_it(
    embedded: LocalTokenizer,
) -> None:
    for raw, pieces in (
        ("a🎉b".encode(), ["a", "", "", "", "🎉", "b"]),
        ("a🎉".encode()[:-1], ["a", "", "", "\ufffd"]),
        (b"a\xff\xe4b", ["a", "", "", "\ufffd\ufffdb"]),
    ):
        ids = bytes_of(embedded, raw)
        assert embedded.pieces(ids) == pieces
        assert embedded.decode(ids) == "".join(pieces)
    first, second = bytes_of(embedded, "é".encode())
    assert embedded.pieces([first, 0, second]) == ["", "", "é"], "a skipped token adds nothing"
    shown = embedded.pieces([first, 0, second], skip_special_tokens=False)
    assert "".join(shown) == "\ufffd<|endoftext|>\ufffd"


def test_sentencepiece_tokens_keep_spaces_and_bytes(
    sentencepiece: LocalTokenizer,
) -> None:
    assert TOKENIZER.pieces([]) == sentencepiece.pieces([]) == []
    ids = sentencepiece.encode("the cat sat")
    assert sentencepiece.decode(ids) == "".join(sentencepiece.pieces(ids)) == "the cat sat"
    assert "".join(sentencepiece.token_texts(ids)) == " the cat sat"
    ids = sentencepiece.encode("cat 🎉")
    assert sentencepiece.pieces(ids)[-4:] == ["", "", "", "🎉"]


def test_concatenated_sentencepiece_token_texts_equal_the_decoded_text(
    sentencepiece: LocalTokenizer,
) -> None:
    @given(st.lists(st.integers(0, 500), max_size=30))
    def check(ids: list[int]) -> None:
        assert "".join(sentencepiece.pieces(ids)) == sentencepiece.decode(ids)

    check()


def test_byte_symbols_match_those_of_the_tokenizers_library() -> None:
    symbols = byte_symbols()
    assert sorted(symbols) == sorted(ByteLevel.alphabet())
    assert sorted(symbols.values()) == list(range(256))
