"""What comes out of the prefix store is what the tokenizer says of the whole text."""

import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from xxhash import xxh64_intdigest

from app.kvindex import chunks as chunks_module
from app.kvindex.chunks import CHUNK_BYTES, chunk_keys
from app.kvindex.prefix_store import PrefixStore
from app.tokenization import LocalTokenizer, TokenizerInputError
from app.tokenization.files import TokenizerFolder
from app.tokenization.render import RenderTokenizer
from tests.kvindex.kinds import KINDS, PARTED
from tests.running_server import ROOT

PROSE = "The capital of France is Paris, and the answer to all of it is 42; the cat sat on the mat. "
PIECES = (
    "the ", "cat", " cat", "Paris", " is ", "42", "1234567", "'s", "won't", " ", "  ", "\n", "\n\n", " \n",
    "\t", "é", "e\u0301", "\u0301", "\u0327", "\u0302", "東京", "日本", "。", "эти ", "🎉", "👍🏽", "🇩🇪",
    "<|user|>", "<|us", "er|>", "<mask>", " <mask>", "<ma", "sk>", "<gap>", "<gap>  ", "café au lait",
    " au lait", "</s>", "<s>", "[MASK]", "[SEP]", "▁", "▁the", "ﬁ", "½", "…", "\u200b", "\0", "\xa0",
    "\u3000", "a", "aaa", "ba", "...", "==", "ß", "İ", "x" * 30, "00000", ", ", ". ", PROSE,
)  # fmt: skip


@cache
def tokenizer(kind: str) -> LocalTokenizer:
    return local(KINDS[kind]())


def local(backend: Tokenizer) -> LocalTokenizer:
    return LocalTokenizer(backend, TokenizerFolder(tokenizer_file=Path("tokenizer.json")), "test")


def text_of(rng: Random, pieces: int) -> str:
    """Some texts are of everything, some of a few pieces only, some are one piece nearly all along."""
    some = rng.choice((PIECES, rng.sample(PIECES, 4), [rng.choice(PIECES)] * 40 + [rng.choice(PIECES)]))
    return rng.choice(("", "", " ")).join(rng.choices(some, k=pieces))


def family(rng: Random, pieces: int, tails: Sequence[tuple[float, str]]) -> list[str]:
    """A text and others that go on from somewhere in one of those before."""
    texts = [text_of(rng, pieces)]
    for share, tail in tails:
        before = rng.choice(texts)
        texts.append(before[: round(share * len(before))] + tail + text_of(rng, rng.randrange(40)))
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    pieces=st.integers(20, 400),
    tails=st.lists(st.tuples(st.floats(0.3, 1), st.text(max_size=8)), min_size=1, max_size=4),
    add_special_tokens=st.booleans(),
)
def test_ids_are_those_of_the_whole_text(
    kind: str, seed: int, pieces: int, tails: list[tuple[float, str]], add_special_tokens: bool
) -> None:
    store, subject = PrefixStore(limit_bytes=80_000), tokenizer(kind)
    for text in family(Random(seed), pieces, tails) * 3:
        assert store.encode(subject, text, add_special_tokens) == subject.encode(text, add_special_tokens)


@pytest.mark.parametrize("kind", PARTED, ids=lambda kind: kind.__name__)
def test_a_prompt_that_goes_on_from_an_earlier_one_is_encoded_at_its_end_only(kind: object) -> None:
    store, subject = PrefixStore(), tokenizer(kind.__name__)  # type: ignore[attr-defined]
    shared = PROSE * 100
    for number, end in enumerate(("Never seen.", "Seen once.", "Known.", "And known again.")):
        assert store.encode(subject, shared + end, True) == subject.encode(shared + end, True)
        assert store.counts.hits == max(0, number - 1)
    counts = store.counts
    assert counts.bytes_reused == counts.chunks_reused * CHUNK_BYTES > 2 * 0.95 * len(shared)
    assert (counts.texts, counts.passed, counts.mismatches) == (4, 0, 0)


def test_the_tail_is_never_lost_however_much_is_known(embedded: LocalTokenizer) -> None:
    store, known = PrefixStore(), PROSE * 50
    for _ in range(3):
        store.encode(embedded, known)
    for length in range(1, 40):
        text = known + "Marseille and Lyon are larger than Nice"[:length]
        assert store.encode(embedded, text) == embedded.encode(text)
    assert store.counts.hits == 40


def test_models_do_not_get_the_tokens_of_one_another() -> None:
    store = PrefixStore()
    for _ in range(3):
        for kind in KINDS:
            for special in (False, True):
                text = PROSE * 20
                assert store.encode(tokenizer(kind), text, special) == tokenizer(kind).encode(text, special)
    assert store.counts.hits > 20


def test_special_tokens_stand_around_the_text_and_not_in_what_is_kept() -> None:
    store, subject = PrefixStore(), tokenizer("word_piece")
    for text in (PROSE * 20, PROSE * 20, PROSE * 30):
        framed = store.encode(subject, text, add_special_tokens=True)
        assert [1, *store.encode(subject, text), 2] == framed


def test_two_texts_with_one_key_keep_their_own_tokens(
    embedded: LocalTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def number(content: bytes) -> int:
        return int.from_bytes(content[:8], "little") + 1

    monkeypatch.setattr(chunks_module, "xxh64_intdigest", number)
    assert chunk_keys(6, bytes(600)) == [7, 8]
    store, begin, end = PrefixStore(), PROSE * 20, PROSE * 20
    middles = ["The first of two that differ here only. ", "Another one, and as long as the other.. "]
    for text in [begin + middle + end for middle in middles] * 4:
        assert store.encode(embedded, text) == embedded.encode(text)


def test_a_chunk_ends_otherwise_when_another_text_goes_on_from_it(embedded: LocalTokenizer) -> None:
    """A token across the end of the chunk in one text, two in the other: they are not to be mixed."""
    chunk = (("x" * 48 + " ") * 4).ljust(CHUNK_BYTES - 4, "x") + " cap"
    one, other = chunk + "ital of France is Paris. " * 40, chunk + ". Nothing else was said. " * 40
    store = PrefixStore()
    for text in (one, one, one, other, other, one):
        assert store.encode(embedded, text) == embedded.encode(text)
    assert store.counts.hits == 1


def test_marks_that_a_normaliser_sorts_are_no_place_for_a_cut() -> None:
    store, subject = PrefixStore(), tokenizer("signs")
    for marks in (100, 200, 300):
        for end in ("", "\u0302", "\u0327", "\u0302" + "\u0327" * 50 + ". " * 20):
            text = PROSE * 4 + "\u0327" * 150 + "\u0302" + "\u0327" * marks + end + PROSE * 2
            assert store.encode(subject, text) == subject.encode(text)


def test_keys_are_the_chain_of_xxh64_over_full_chunks() -> None:
    content = bytes(range(256)) * 2 + b"tail"
    first = xxh64_intdigest(bytes(8) + content[:256])
    second = xxh64_intdigest(first.to_bytes(8, "little") + content[256:512])
    assert chunk_keys(0, content) == [first, second]
    assert chunk_keys(0, content[:255]) == []


def test_what_is_kept_is_bounded_and_ends_go_before_beginnings(embedded: LocalTokenizer) -> None:
    store = PrefixStore(limit_bytes=20_000)
    long = PROSE * 200
    for _ in range(3):
        store.encode(embedded, long)
    kept = store.caches["prompt beginnings"]
    assert 17_000 < kept.size_bytes <= kept.limit_bytes == 20_000
    before = store.counts
    begin = PROSE * 20
    assert store.encode(embedded, begin) == embedded.encode(begin)
    assert store.counts.chunks_reused - before.chunks_reused == len(begin) // CHUNK_BYTES


@pytest.mark.slow
def test_the_memory_of_what_is_kept_is_reckoned_about_right(embedded: LocalTokenizer) -> None:
    store, words = PrefixStore(), PROSE.split()

    def encode_texts(numbers: range) -> int:
        for number in numbers:
            text = " ".join(Random(number).choices(words, k=2_000))
            for _ in range(3):
                store.encode(embedded, text)
        return sum(cache.size_bytes for cache in store.caches.values())

    before = encode_texts(range(2))
    tracemalloc.start()
    try:
        empty, _ = tracemalloc.get_traced_memory()
        reckoned = encode_texts(range(2, 32)) - before
        taken = tracemalloc.get_traced_memory()[0] - empty
    finally:
        tracemalloc.stop()
    assert 0.7 * taken < reckoned < 1.3 * taken


def test_texts_that_are_new_every_time_are_not_kept(embedded: LocalTokenizer) -> None:
    store = PrefixStore()
    for number in range(20):
        store.encode(embedded, f"Prompt number {number}: " + PROSE * 20)
    assert (store.caches["prompt beginnings"].size_bytes, store.counts.hits) == (0, 0)


@pytest.mark.parametrize("kind", ["in_one_run", "from_right"])
def test_tokenizers_that_look_far_are_given_whole_texts(kind: str) -> None:
    store = PrefixStore()
    for _ in range(3):
        store.encode(tokenizer(kind), PROSE * 20)
    assert store.counts.hits == 0


def test_short_texts_and_remote_tokenizers_are_passed_on(embedded: LocalTokenizer) -> None:
    store = PrefixStore()
    assert store.encode(embedded, "") == []
    assert store.encode(embedded, "hello") == embedded.encode("hello")

    class Remote(RenderTokenizer):
        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            return [len(text), add_special_tokens]

    remote = Remote("http://127.0.0.1:9", model="m")
    assert store.encode(remote, PROSE * 10, True) == [len(PROSE) * 10, 1]
    assert store.counts.passed == store.counts.texts == 3


def test_half_a_surrogate_pair_is_an_input_error(embedded: LocalTokenizer) -> None:
    with pytest.raises(TokenizerInputError, match="surrogate"):
        PrefixStore().encode(embedded, PROSE * 10 + "\ud800")


def test_an_added_token_that_completes_itself_behind_what_is_known_is_found() -> None:
    backend = KINDS["llama_2"]()
    backend = Tokenizer.from_str(backend.to_str())
    backend.add_tokens([AddedToken("the end of " + "all " * 60 + "things")])
    subject, store = local(backend), PrefixStore()
    ends = ["the end of " + "all " * 60 + thing for thing in ("that", "that", "cats", "things")]
    for length in range(0, 400, 7):
        for end in ends:
            text = PROSE * 10 + "aaa " * length + end
            assert store.encode(subject, text) == subject.encode(text)


def test_a_returned_list_is_the_callers_own(embedded: LocalTokenizer) -> None:
    store, text = PrefixStore(), PROSE * 20
    for _ in range(4):
        ids = store.encode(embedded, text)
        assert ids == embedded.encode(text)
        ids.clear()


def test_threads_share_a_store() -> None:
    store, subject = PrefixStore(limit_bytes=50_000), tokenizer("llama_3")
    texts = family(Random(5), 300, [(0.9, "x")] * 12) * 12
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: store.encode(subject, text), texts))
    assert answers == subject.encode_many(texts)
    assert store.counts.texts == len(texts)


def test_other_greenlets_run_while_a_long_text_is_encoded() -> None:
    program = """
from gevent import monkey; monkey.patch_all()
import gevent
from app.tokenization import default_tokenizer
from app.kvindex.prefix_store import PrefixStore
from app.tokenization.render import RenderTokenizer
tokenizer, store, ticks = default_tokenizer(), PrefixStore(), []
def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.001)
gevent.spawn(tick)
gevent.sleep(0)
for number in range(3):
    before = len(ticks)
    assert len(store.encode(tokenizer, "word " * (50_000 << number))) == (50_000 << number) + 1
    assert len(ticks) > before + 5, number
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=50)
