"""Lets compiled parts load beside an older libstdc++ than they were built with: `make_optional`."""

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

SYMBOLS = 11
VERSION_NEEDS = 0x6FFFFFFE
VERSION_INDEXES = 0x6FFFFFFF
"""Types of sections of an ELF file: dynamic symbols, needed versions, and a version per symbol."""
WEAK_VERSION = 2
WEAK_SYMBOL = 2
"""Marks of a version and of a symbol that may be missing: the symbol's address is 0 then."""
_HEADER = struct.Struct("<32xQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NEED = struct.Struct("<HHIII")
_NEEDED_VERSION = struct.Struct("<IHHII")
SYMBOL_SIZE = 24


class _Section(NamedTuple):
    kind: int
    start: int
    size: int
    link: int


def make_optional(path: Path, versions: Collection[str]) -> None:
    """Marks the symbols of these versions, such as CXXABI_1.3.15, as ones that may be missing.

    The linker then loads a 64-bit ELF file without them. A symbol that is missing must not be used.
    """
    if not versions:
        return
    content = bytearray(path.read_bytes())
    sections = list(_sections(content))
    indexes: set[int] = set()
    for section in sections:
        if section.kind == VERSION_NEEDS:
            names = sections[section.link].start
            indexes.update(_weakened_versions(content, section.start, names, versions))
    [symbols] = [section for section in sections if section.kind == SYMBOLS]
    [symbol_versions] = [section for section in sections if section.kind == VERSION_INDEXES]
    for number in range(symbols.size // SYMBOL_SIZE):
        (index,) = struct.unpack_from("<H", content, symbol_versions.start + 2 * number)
        if index in indexes:
            kind = symbols.start + SYMBOL_SIZE * number + 4
            content[kind] = WEAK_SYMBOL << 4 | content[kind] & 15
    path.write_bytes(content)


def _sections(content: bytearray) -> Iterator[_Section]:
    _, start, _, _, _, _, size, count, _ = _HEADER.unpack_from(content)
    for number in range(count):
        fields = _SECTION.unpack_from(content, start + number * size)
        yield _Section(kind=fields[1], start=fields[4], size=fields[5], link=fields[6])


def _weakened_versions(
    content: bytearray,
    need: int,
    names: int,
    versions: Collection[str],
) -> Iterator[int]:
    """Marks the needed versions; yields their indexes. `need` is the first library's place."""
    while True:
        _, _, _, first, next_need = _NEED.unpack_from(content, need)
        place = need + first
        while True:
            code, flags, index, name, next_place = _NEEDED_VERSION.unpack_from(content, place)
            end = content.index(0, names + name)
            if content[names + name : end].decode() in versions:
                struct.pack_into("<H", content, place + 4, flags | WEAK_VERSION)
                yield index
            if not next_place:
                break
            place += next_place
        if not next_need:
            return
        need += next_need
