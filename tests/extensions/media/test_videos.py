"""Films: headers of MP4 files, sampled frames, and tokens."""

import base64
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from app.core.base.metrics.recorder import Recorder
from app.core.settings import load
from app.extensions.media.facts import facts_of
from app.extensions.media.mp4 import is_mp4
from app.extensions.media.reader import MAX_TEXTS, Reader, model_of
from app.extensions.media.settings import MediaSettings
from app.extensions.media.sound_headers import SoundHeader, read_sound
from app.extensions.media.tracks import Film
from app.extensions.media.video_headers import FilmError, read_film
from app.extensions.media.videos import VideoRule
from tests.application import app_of


def box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", 8 + len(body)) + kind + body


def track(kind: bytes, *, size: tuple[int, int], seconds: float, samples: int) -> bytes:
    header = bytes(76) + struct.pack(">II", size[0] << 16, size[1] << 16)
    media = bytes(12) + struct.pack(">II", 600, round(600 * seconds)) + bytes(4)
    table = box(b"stsz", bytes(8) + struct.pack(">I", samples) + bytes(4 * samples))
    return box(
        b"trak",
        box(b"tkhd", header)
        + box(
            b"mdia",
            box(b"mdhd", media)
            + box(b"hdlr", bytes(8) + kind + bytes(12))
            + box(b"minf", box(b"stbl", table)),
        ),
    )


def mp4(width: int = 640, height: int = 480, *, seconds: float = 10, frames: int = 300) -> bytes:
    tracks = track(b"soun", size=(0, 0), seconds=seconds + 1, samples=400)
    tracks += track(b"vide", size=(width, height), seconds=seconds, samples=frames)
    return box(b"ftyp", b"isom" + bytes(4)) + box(b"moov", box(b"mvhd", bytes(100)) + tracks)


def test_size_and_length_are_read_from_the_boxes() -> None:
    assert read_film(mp4()) == Film(640, 480, 300, 30.0)
    assert read_sound(mp4()) == SoundHeader(11_000, 1_000)


def test_boxes_may_follow_the_data() -> None:
    assert read_film(box(b"ftyp", b"isom") + box(b"mdat", bytes(1_000)) + mp4()) is not None


HOSTILE = {
    "nothing": b"",
    "type alone": box(b"ftyp", b"isom"),
    "film of no frames": mp4(frames=0),
    "film of no time": mp4(seconds=0),
    "film of no width": mp4(width=0),
    "cut": mp4()[:300],
    "boxes of no size": (struct.pack(">I", 0) + b"moov") * 10_000,
    "boxes of a byte": (struct.pack(">I", 1) + b"moov") * 10_000,
    "boxes in boxes": b"".join(struct.pack(">I", 1 << 30) + b"moov" for _ in range(100_000)),
    "megabytes of small boxes": box(b"free", b"") * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_film_is_rejected(name: str) -> None:
    with pytest.raises(FilmError, match="Could not open video stream"):
        read_film(HOSTILE[name])


@given(st.data())
def test_any_change_of_a_file_leaves_a_film_or_none(data: st.DataObject) -> None:
    changed = bytearray(mp4(frames=4))
    for _ in range(data.draw(st.integers(min_value=1, max_value=6))):
        place = data.draw(st.integers(min_value=0, max_value=len(changed) - 1))
        changed[place] = data.draw(st.integers(min_value=0, max_value=255))
    try:
        film = read_film(bytes(changed))
    except FilmError:
        return
    assert film is None or film.frames > 0


def words(text: str) -> list[int]:
    return [0] * len(text.split())


def rule(model: str) -> VideoRule:
    facts = facts_of(model)
    assert facts is not None
    assert facts.video is not None
    return facts.video


@pytest.mark.parametrize(
    ("model", "frames", "length", "embeddings"),
    [
        # Two frames per second, in pairs of 17 x 23 tokens.
        ("Qwen/Qwen2.5-VL-7B-Instruct", 300, 3_910, 3_910),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 5, 782, 782),
        # Pairs of 15 x 20 tokens, each behind a time and between two marks.
        ("Qwen/Qwen3-VL-4B-Instruct", 300, 10 * 304, 3_000),
        ("llava-hf/llava-onevision-qwen2-0.5b-ov-hf", 300, 32 * 196 + 1, 32 * 196 + 1),
        ("llava-hf/llava-onevision-qwen2-0.5b-ov-hf", 10, 10 * 196 + 1, 10 * 196 + 1),
        ("OpenGVLab/InternVL3-8B", 300, 32 * 259, 32 * 256),
        ("openbmb/MiniCPM-V-2_6", 300, 32 * 66, 32 * 64),
    ],
)
def test_tokens_of_a_film_follow_its_frames(
    model: str, frames: int, length: int, embeddings: int
) -> None:
    tokens = rule(model).tokens(Film(640, 480, frames, 30.0), words)
    assert (tokens.length, tokens.embeddings) == (length, embeddings)


def prompt_tokens(address: str, *flags: str) -> Any:
    client = app_of("--model", "Qwen/Qwen2.5-VL-7B-Instruct", *flags).test_client()
    parts = [{"type": "video_url", "video_url": {"url": address}}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    return answer.get_json()["usage"]["prompt_tokens"]


def test_film_of_a_request_has_the_tokens_of_its_header() -> None:
    address = "data:video/mp4;base64,"
    long = prompt_tokens(address + base64.b64encode(mp4()).decode())
    short = prompt_tokens(address + base64.b64encode(mp4(seconds=5, frames=150)).decode())
    assert long - short == 5 * 391


def test_film_behind_a_url_has_the_size_in_the_fragment_and_the_default_duration() -> None:
    address = "https://example.com/a.mp4#640x480"
    difference = prompt_tokens(address, "--media-duration", "10s") - prompt_tokens(
        address, "--media-duration", "5s"
    )
    assert difference == 5 * 391


def test_film_begins_with_a_box() -> None:
    assert is_mp4(mp4())
    assert not is_mp4(b"RIFF")


def test_times_between_frames_are_forgotten_after_many_films() -> None:
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return [1] * len(text)

    settings = load(("--model", "Qwen/Qwen3-VL-8B-Instruct"), {})
    reader = Reader(
        model_of(settings),
        settings.section(MediaSettings),
        cast(Any, SimpleNamespace(encode=encode)),
        recorder=Recorder("m", 4096, {}),
    )

    def read(seconds: int) -> None:
        data = base64.b64encode(mp4(seconds=seconds, frames=1_000)).decode()
        part = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}}
        reader.read([{"role": "user", "content": [part]}], Struct())

    read(1_000)
    first = len(encoded)
    reader.forget()
    read(1_000)
    assert len(encoded) == first
    for seconds in range(1_001, 1_002 + 2 * MAX_TEXTS // first):
        read(seconds)
    reader.forget()
    count = len(encoded)
    read(1_000)
    assert len(encoded) > count
