"""Token ids of the beginnings of texts: a prompt that begins as earlier ones is encoded at its end only.

As the LRU store of llm-d's index (kv-cache specification, section 1.3) it keeps chunks of 256 bytes under a
chain of XXH64 keys. Unlike there, what comes back is always what encoding the whole text gives: the tail is
encoded, every tokenizer has a chain of its own, and a chunk counts only behind the one it was stored behind.

Exactness rests on four things:

1. A tokenizer is asked in parts only if its components look no further than a few words (`cuts`).
2. Tokens are kept only up to a cut some words before the end of their chunk: what follows cannot change them.
3. The rest is encoded from some words before that cut on, and these have to come out as they are kept, cuts
   and all. If they do not, the whole text is encoded.
4. Special tokens of a post-processor are not kept, but put around the ids on the way out.

To find cuts makes encoding nearly twice as slow: tokens are kept only where a text begins as an earlier one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock
from weakref import WeakKeyDictionary

from xxhash import xxh64_intdigest

from app.clock.pause import call_off_hub
from app.kvcache.memo import Bounded
from app.kvindex.chunks import CHARACTERS_BEHIND, CHUNK_BYTES, Beginning, Chunk, chunk_keys, cut_chunks
from app.kvindex.cuts import Cut, Cutter, CutText
from app.tokenization.base import Tokenizer
from app.tokenization.huggingface import LONG_TEXT, LocalTokenizer

KEPT_BYTES = 48 << 20
"""Memory of the chunks that are kept."""
SEEN_BYTES = 8 << 20
"""Memory of the keys of those that were only asked for."""
CHUNK_BYTES_BESIDE = 350
"""Memory of a kept chunk beside its text and its arrays; measured."""
KEY_BYTES = 80
"""Memory of a key in a set; measured."""
WORTH = 0.5
"""Share of a text of which the tokens must be kept, or else the whole is encoded faster without cuts."""
TEXT_BEGIN: Cut = (0, 0)


@dataclass(frozen=True, slots=True)
class Kept:
    """A chunk and its place: behind the chunk with the serial number `parent`, or at the start of a chain."""

    serial: int
    parent: int
    chunk: Chunk


class KeptChunks:
    """Chunks under their keys, up to `limit_bytes` of memory; those go first that were not used for longest.

    cachetools would do, at three times the cost of a hit: a text has a hundred chunks.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._chunks: OrderedDict[int, Kept] = OrderedDict()
        self.get = self._chunks.get

    def use(self, keys: Sequence[int], chunks: Sequence[Kept]) -> None:
        """Keep the chunks of a text, also those here already. Its end will go before its beginning."""
        for key, kept in zip(reversed(keys), reversed(chunks), strict=True):
            known = self._chunks.get(key)
            if known is kept:
                self._chunks.move_to_end(key)
            else:
                self._put(key, kept)
        while self.size_bytes > self.limit_bytes:
            self.size_bytes -= _kept_bytes(self._chunks.popitem(last=False)[1])

    def _put(self, key: int, kept: Kept) -> None:
        replaced = self._chunks.pop(key, None)
        self._chunks[key] = kept
        self.size_bytes += _kept_bytes(kept) - (_kept_bytes(replaced) if replaced else 0)


def _kept_bytes(kept: Kept) -> int:
    chunk = kept.chunk
    arrays = len(chunk.ids) + len(chunk.cut_tokens) + len(chunk.cut_characters)
    return CHUNK_BYTES_BESIDE + CHUNK_BYTES + chunk.ids.itemsize * arrays


class Sightings:
    """Keys of chunks that were asked for of late, up to `limit_bytes` of memory.

    There are two generations of half the size: when the young one is full, the old one is forgotten.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._most = max(1, limit_bytes // 2 // KEY_BYTES)
        self._young: set[int] = set()
        self._old: set[int] = set()

    @property
    def size_bytes(self) -> int:
        return KEY_BYTES * (len(self._young) + len(self._old))

    def __contains__(self, key: int) -> bool:
        return key in self._young or key in self._old

    def add(self, keys: Sequence[int]) -> None:
        while keys:
            room = self._most - len(self._young)
            self._young.update(keys[:room])
            keys = keys[room:]
            if len(self._young) >= self._most:
                self._old, self._young = self._young, set()


@dataclass(slots=True)
class PrefixCounts:
    """What a store has done since its beginning."""

    texts: int = 0
    """All that were to be encoded."""
    passed: int = 0
    """Of these, given to the tokenizer as they were: too short, or not to be encoded in parts."""
    hits: int = 0
    """Of these, encoded at their end only."""
    mismatches: int = 0
    """Of these, encoded as a whole because the end did not fit what was kept."""
    chunks_reused: int = 0
    bytes_reused: int = 0
    """Bytes of text whose tokens were kept."""
    bytes_seen: int = 0
    """Bytes of all texts that were not passed on."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The text of one call: its content, and a key for every full chunk of it."""

    tokenizer: int
    text: str
    content: bytes
    keys: list[int]


class PrefixStore:
    """Encodes through tokenizers, remembering beginnings; one for all tokenizers, for threads and greenlets.

    Args:
        limit_bytes: memory of what is kept; what was not used for longest goes first.
    """

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._kept = KeptChunks(limit_bytes)
        self._seen = Sightings(SEEN_BYTES)
        self._tokenizers: WeakKeyDictionary[Tokenizer, int] = WeakKeyDictionary()
        self._cutters: WeakKeyDictionary[LocalTokenizer, Cutter | None] = WeakKeyDictionary()
        self._serials = count(1)
        self._counts = PrefixCounts()
        self._lock = Lock()

    @property
    def counts(self) -> PrefixCounts:
        """A copy."""
        with self._lock:
            return replace(self._counts)

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """What is remembered, by name."""
        return {"prompt beginnings": self._kept, "prompt sightings": self._seen}

    def encode(self, tokenizer: Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
        """What `tokenizer.encode` returns, and raises."""
        cutter = self._cutter(tokenizer) if isinstance(tokenizer, LocalTokenizer) else None
        frame = cutter.frame if cutter and add_special_tokens else ([], [])
        content = _utf8(text)
        if cutter is None or frame is None or len(content) < CHUNK_BYTES:
            with self._lock:
                self._counts.texts += 1
                self._counts.passed += 1
            return tokenizer.encode(text, add_special_tokens)
        ids = self._encode(tokenizer, cutter, self._chain(tokenizer, text, content))
        return [*frame[0], *ids, *frame[1]] if add_special_tokens else ids

    def _cutter(self, tokenizer: LocalTokenizer) -> Cutter | None:
        """Found out beside the event loop, once; two that ask at the same time get equal ones."""
        try:
            return self._cutters[tokenizer]
        except KeyError:
            cutter = self._cutters[tokenizer] = call_off_hub(Cutter.of, tokenizer.backend)
            return cutter

    def _chain(self, tokenizer: Tokenizer, text: str, content: bytes) -> Chain:
        with self._lock:
            serial = self._tokenizers.get(tokenizer)
            if serial is None:
                serial = self._tokenizers[tokenizer] = next(self._serials)
        root = xxh64_intdigest(serial.to_bytes(8, "little"))
        return Chain(serial, text, content, chunk_keys(root, content))

    def _encode(self, tokenizer: Tokenizer, cutter: Cutter, chain: Chain) -> list[int]:
        kept, grows = self._walk(chain)
        worthy = len(kept) * CHUNK_BYTES >= WORTH * len(chain.content)
        beginning = Beginning.of([each.chunk for each in kept]) if grows or worthy else None
        if beginning is not None:
            joined = beginning.join(_cut(cutter, chain.text[beginning.cuts[0][1] :]))
            if joined is not None:
                self._count(chain, reused=len(kept))
                self._keep(chain, cutter, kept, beginning.cuts[-1], joined)
                return joined.ids
        self._count(chain, mismatches=beginning is not None)
        if not grows and beginning is None:
            return tokenizer.encode(chain.text)
        whole = _cut(cutter, chain.text)
        self._keep(chain, cutter, (), TEXT_BEGIN, whole)
        return whole.ids

    def _walk(self, chain: Chain) -> tuple[list[Kept], bool]:
        """The kept chunks that the text begins with, and whether the next one was seen before."""
        found: list[Kept] = []
        parent = chain.tokenizer
        with self._lock:
            for number, key in enumerate(chain.keys):
                kept = self._kept.get(key)
                if kept is None or kept.parent != parent:
                    break
                if kept.chunk.content != chain.content[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]:
                    break  # two texts with one key
                found.append(kept)
                parent = kept.serial
            further = chain.keys[len(found) :]
            grows = bool(further) and further[0] in self._seen
            self._seen.add(further)
        return found, grows

    def _keep(self, chain: Chain, cutter: Cutter, before: Sequence[Kept], end: Cut, text: CutText) -> None:
        """Keep the chunks of a text behind those `before`, whose tokens end at `end`; see `cut_chunks`."""
        margin = max(CHARACTERS_BEHIND, 2 * cutter.longest_added_token)
        chunks = list(cut_chunks(chain.content, len(before), end, text, margin))
        with self._lock:
            kept = [*before, *self._placed(chain, before, chunks)]
            self._kept.use(chain.keys, kept)

    def _placed(self, chain: Chain, before: Sequence[Kept], chunks: Sequence[Chunk]) -> list[Kept]:
        """The chunks behind those `before`; what is known already stays, and so what was stored behind it."""
        placed = []
        parent = before[-1].serial if before else chain.tokenizer
        for key, chunk in zip(chain.keys[len(before) :], chunks, strict=True):
            kept = self._kept.get(key)
            if kept is None or kept.parent != parent or kept.chunk != chunk:
                kept = Kept(next(self._serials), parent, chunk)
            placed.append(kept)
            parent = kept.serial
        return placed

    def _count(self, chain: Chain, reused: int = 0, mismatches: int = 0) -> None:
        with self._lock:
            counts = self._counts
            counts.texts += 1
            counts.hits += reused > 0
            counts.mismatches += mismatches
            counts.chunks_reused += reused
            counts.bytes_reused += reused * CHUNK_BYTES
            counts.bytes_seen += len(chain.content)


def _utf8(text: str) -> bytes:
    """Empty where half a surrogate pair is in the text: the tokenizer says so."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


def _cut(cutter: Cutter, text: str) -> CutText:
    """Long texts leave the event loop alone."""
    return call_off_hub(cutter.encode, text) if len(text) > LONG_TEXT else cutter.encode(text)
