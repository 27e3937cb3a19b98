"""Files that FFmpeg wrote, and their lengths when PyAV decodes them; hostile ones."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extensions.media.matroska import MAX_ELEMENTS, NANOSECONDS, read_matroska
from app.extensions.media.sound_headers import LongSoundError, SoundError, read_sound
from app.extensions.media.tracks import SOUND, Film, MovieTrack
from app.extensions.media.video_headers import FilmError, read_film

FILES = Path(__file__).with_name("files")
SOUNDS = {
    "aac.aac": 0.768,
    "aac.m4a": 0.384,
    "flac.ogg": 0.1,
    "fragments.mp4": 1.536,
    "live.webm": 0.3,
    "mp3.avi": 0.396,
    "narrow.amr": 0.72,
    "opus.ogg": 0.3,
    "opus.webm": 0.3,
    "pcm.aiff": 0.05,
}
"""Seconds."""
FRAME_S = 0.13
"""Duration of a frame of AAC at 8 kHz: decoders cut the first one or not."""
FILMS = {
    "fragments_mpeg4.mp4": (64, 48, 27, 30.0),
    "live_vp9.webm": (64, 48, 10, 25.0),
    "mpeg4.avi": (64, 48, 12, 30.0),
    "vp9.webm": (64, 48, 10, 25.0),
}


@pytest.mark.parametrize("name", SOUNDS)
def test_sound_lasts_as_long_as_its_decoded_samples(name: str) -> None:
    header = read_sound((FILES / name).read_bytes())
    assert header.samples / header.rate == pytest.approx(SOUNDS[name], abs=FRAME_S)


@pytest.mark.parametrize("name", FILMS)
def test_film_has_the_decoded_frames(name: str) -> None:
    data = (FILES / name).read_bytes()
    film = read_film(data)
    assert film is not None
    width, height, frames, fps = FILMS[name]
    assert film == Film(width, height, frames, film.fps)
    assert film.fps == pytest.approx(fps)
    with pytest.raises(SoundError, match="No audio stream found"):
        read_sound(data)


@pytest.mark.parametrize("name", [*SOUNDS, *FILMS])
@given(data=st.data())
def test_any_change_of_a_file_leaves_a_length_or_an_error(name: str, data: st.DataObject) -> None:
    changed = bytearray((FILES / name).read_bytes())
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        place = data.draw(st.integers(min_value=0, max_value=min(len(changed), 800) - 1))
        changed[place] = data.draw(st.integers(min_value=0, max_value=255))
    content = bytes(changed[: data.draw(st.integers(min_value=1, max_value=len(changed)))])
    try:
        header = read_sound(content)
    except SoundError:
        pass
    else:
        assert 0 < header.samples <= 600.01 * header.rate
    try:
        film = read_film(content)
    except FilmError:
        return
    assert film is None or (film.frames > 0 and film.fps > 0)


EBML = b"\x1aE\xdf\xa3"
SEGMENT = b"\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff"
HOSTILE = {
    "Ogg without a codec": b"OggS" + bytes(50),
    "Ogg of no samples": b"OggS\x00\x02"
    + bytes(20)
    + b"\x01\x13OpusHead\x01\x01\x00\x00"
    + bytes(20),
    "Ogg of marks": b"OggS" * 1_000_000,
    "AIFF without a format": b"FORM\x00\x00\x00\x10AIFF" + bytes(1_000_000),
    "AIFF of a rate of nothing": b"FORM\x00\x00\x00\x10AIFFCOMM\x00\x00\x00\x12" + bytes(18),
    "AMR without frames": b"#!AMR\n",
    "AMR of an unknown mode": b"#!AMR\n" + b"\x54" * 100,
    "AAC of a frame without a size": b"\xff\xf1\x50\x80\x00\x00\x00" + bytes(100),
    "AAC of an unknown rate": b"\xff\xf1\x7c\x80\x01\x1f\xfc" + bytes(100),
    "ADIF": b"ADIF" + bytes(100),
    "Matroska alone": EBML,
    "Matroska without tracks": EBML + b"\x80" + SEGMENT,
    "Matroska of zeros": EBML + b"\x80" + SEGMENT + bytes(1_000_000),
    "Matroska of empty elements": EBML + b"\x80" + SEGMENT + b"\xec\x80" * 2_000_000,
    "Matroska in Matroska": EBML + b"\x80" + SEGMENT * 100_000,
    "AVI alone": b"RIFF\xff\xff\xff\xffAVI ",
    "AVI of lists": b"RIFF\xff\xff\xff\xffAVI " + b"LIST\x04\x00\x00\x00hdrl" * 100_000,
    "MP4 without a duration": b"\x00\x00\x00\x20ftypisom" + bytes(50),
    "MP4 of a run of 4 billion samples": (
        b"\x00\x00\x00\x08ftyp\x00\x00\x00\x28moof\x00\x00\x00\x20traf"
        + struct.pack(">I4sIII", 20, b"trun", 0x100, 0xFFFFFFFF, 0)
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_container_without_a_sound_is_rejected(name: str) -> None:
    with pytest.raises(SoundError):
        read_sound(HOSTILE[name])


@pytest.mark.parametrize("name", [name for name in HOSTILE if name[:3] in ("Mat", "AVI", "MP4")])
def test_container_without_a_film_is_rejected(name: str) -> None:
    with pytest.raises(FilmError, match="Could not open video stream"):
        read_film(HOSTILE[name])


def test_sound_that_is_too_long_is_rejected_by_its_header() -> None:
    data = bytearray((FILES / "mp3.avi").read_bytes())
    place = data.index(b"auds")
    struct.pack_into("<I", data, place + 32, 1 << 24)
    with pytest.raises(LongSoundError, match="metadata reports"):
        read_sound(bytes(data))


def test_shortest_sound_in_a_container_is_not_empty() -> None:
    data = bytearray((FILES / "fragments.mp4").read_bytes())
    place = data.index(b"mdhd") + 16
    assert struct.unpack_from(">I", data, place) == (8_000,)
    struct.pack_into(">I", data, place, 0xFFFF_FFFF)
    assert read_sound(bytes(data)).samples == 1


def test_long_matroska_file_without_a_cluster_is_read_once() -> None:
    track = b"\x16\x54\xae\x6b\x88\xae\x86\xd7\x81\x01\x83\x81\x02"
    data = EBML + b"\x80" + SEGMENT + track + b"\xec\x80" * MAX_ELEMENTS
    assert read_matroska(data) == [MovieTrack(kind=SOUND, number=1, timescale=NANOSECONDS)]
