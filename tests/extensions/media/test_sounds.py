"""Durations of sounds from their headers, and their tokens."""

import base64
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extensions.media.pcm_headers import WAVE64
from app.extensions.media.rules import RuleError
from app.extensions.media.sound_headers import SoundError, SoundHeader, read_sound
from app.extensions.media.sounds import SoundRule
from tests.application import app_of


def wav(samples: int, rate: int = 16_000, *, channels: int = 1, before: bytes = b"") -> bytes:
    frame = 2 * channels
    fields = struct.pack("<HHIIHH", 1, channels, rate, rate * frame, frame, 16)
    body = b"WAVE" + before + b"fmt " + struct.pack("<I", 16) + fields
    body += b"data" + struct.pack("<I", samples * frame) + bytes(samples * frame)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def flac(samples: int, rate: int) -> bytes:
    bits = (rate << 44) | (1 << 41) | (15 << 36) | samples
    info = bytes(10) + bits.to_bytes(8, "big") + bytes(16)
    return b"fLaC\x80\x00\x00\x22" + info


def mp3(frames: int, *, tag: bytes = b"", header: bytes = b"\xff\xfb\x90\x00") -> bytes:
    """Returns frames of 417 bytes: 128 kbit/s and 44.1 kHz unless the header says otherwise."""
    frame = header + bytes(413)
    first = header + bytes(32) + tag + bytes(413 - 32 - len(tag))
    return first + frame * (frames - 1)


def au(samples: int, rate: int = 16_000, *, size: int | None = None, encoding: int = 3) -> bytes:
    body = bytes(2 * samples)
    if size is None:
        size = len(body)
    return b".snd" + struct.pack(">5I", 24, size, encoding, rate, 1) + body


def caf(samples: int, rate: float = 16_000.0, *, size: int | None = None) -> bytes:
    """Returns two channels of 16 bits, behind a free chunk as libsndfile writes it."""
    data = bytes(4 + 4 * samples)
    if size is None:
        size = len(data)
    form = struct.pack(">d4sIIIII", rate, b"lpcm", 0, 4, 1, 2, 16)
    head = b"caff\x00\x01\x00\x00" + b"desc" + struct.pack(">q", len(form)) + form
    free = b"free" + struct.pack(">q", 100) + bytes(100)
    return head + free + b"data" + struct.pack(">q", size) + data


def wave64(samples: int, rate: int = 16_000) -> bytes:
    guid = b"\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
    form = struct.pack("<HHIIHH", 1, 2, rate, 4 * rate, 4, 16)
    body = b"wave" + guid + b"fmt " + guid + struct.pack("<Q", 24 + len(form)) + form
    body += b"data" + guid + struct.pack("<Q", 24 + 4 * samples) + bytes(4 * samples)
    return WAVE64 + struct.pack("<Q", 24 + len(body)) + body


LIST = b"LIST" + struct.pack("<I", 5) + b"INFO\0\0"
XING = b"Xing" + struct.pack(">II", 1, 1_000)


@pytest.mark.parametrize(
    ("data", "samples", "rate"),
    [
        (wav(16_000), 16_000, 16_000),
        (wav(44_100, 44_100, channels=2), 44_100, 44_100),
        (wav(16_000, before=LIST), 16_000, 16_000),
        (wav(16_000)[:-16_000], 8_000, 16_000),
        (flac(96_000, 48_000), 96_000, 48_000),
        (mp3(100), 114_935, 44_100),
        (mp3(100, tag=XING), 1_152_000, 44_100),
        (b"ID3\x04\0\0\0\0\x01\x00" + bytes(128) + mp3(100), 114_935, 44_100),
        (mp3(100, header=b"\xff\xf3\x90\x00"), 91_948, 22_050),
        (mp3(100, tag=bytes(160) + b"Xing"), 114_935, 44_100),
        (mp3(100, tag=XING)[:46], 126, 44_100),
        (au(1_601, 22_050), 1_601, 22_050),
        (au(1_601, size=0xFFFF_FFFF), 1_601, 16_000),
        (au(1_601)[:-3], 1_599, 16_000),
        (caf(1_601, 22_050.0), 1_601, 22_050),
        (caf(1_601, size=-1), 1_601, 16_000),
        (caf(1_601)[:-4], 1_600, 16_000),
        (wave64(1_601, 22_050), 1_601, 22_050),
        (wave64(1_601)[:-4], 1_600, 16_000),
    ],
)
def test_length_is_read_from_the_header(data: bytes, samples: int, rate: int) -> None:
    assert read_sound(data) == SoundHeader(samples, rate)


HOSTILE = {
    "nothing": b"",
    "text": b"hello, this is no sound",
    "WAV of nothing": b"RIFF\0\0\0\0WAVE",
    "WAV of empty chunks": b"RIFF\0\0\0\0WAVE" + bytes(8_000_000),
    "WAV without samples": wav(0),
    "WAV without a rate": wav(100, 0),
    "WAV without a format": b"RIFF\0\0\0\0WAVEdata\x10\0\0\0" + bytes(16),
    "WAV with a chunk of 4 GB": b"RIFF\0\0\0\0WAVELIST\xff\xff\xff\xff" + bytes(100),
    "FLAC of nothing": b"fLaC",
    "FLAC without samples": flac(0, 48_000),
    "FLAC of years": flac((1 << 36) - 1, 48_000),
    "MP3 of a reserved version": mp3(10, header=b"\xff\xeb\x90\x00"),
    "MP3 of a reserved rate": mp3(10, header=b"\xff\xfb\x9c\x00"),
    "MP3 of a free bitrate": mp3(10, header=b"\xff\xfb\x00\x00"),
    "MP3 behind a tag beyond the end": b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + mp3(10),
    "AU of nothing": b".snd",
    "AU of an unknown encoding": au(100, encoding=99),
    "AU without a rate": au(100, 0),
    "CAF of nothing": b"caff",
    "CAF of a rate of infinity": caf(100, math.inf),
    "CAF of empty chunks": b"caff\x00\x01\x00\x00" + bytes(8_000_000),
    "CAF of a chunk of exabytes": b"caff\x00\x01\x00\x00free" + b"\x7f" * 8 + bytes(100),
    "Wave64 of nothing": WAVE64,
    "Wave64 of empty chunks": WAVE64 + bytes(8_000_000),
    "Wave64 of a chunk of exabytes": WAVE64 + bytes(24) + b"data" + b"\xff" * 100,
    "MP3 of years": mp3(10, tag=b"Xing" + struct.pack(">II", 1, 2**32 - 1)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sound_is_rejected(name: str) -> None:
    with pytest.raises(SoundError):
        read_sound(HOSTILE[name])


SMALL_FILES = (
    *(wav(100), flac(100, 8_000), mp3(2, tag=XING)),
    *(au(100), caf(100), wave64(100)),
)


@given(st.sampled_from(SMALL_FILES), st.data())
def test_any_change_of_a_file_leaves_a_length_or_an_error(file: bytes, data: st.DataObject) -> None:
    changed = bytearray(file)
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        place = data.draw(st.integers(min_value=0, max_value=min(len(file), 160) - 1))
        changed[place] = data.draw(st.integers(min_value=0, max_value=255))
    try:
        header = read_sound(bytes(changed))
    except SoundError:
        return
    assert 0 < header.samples <= 600 * header.rate


@pytest.mark.parametrize(
    ("rule", "samples", "count"),
    [
        (SoundRule(), 16_000, 25),
        (SoundRule(max_frames=3_000), 16_000 * 40, 750),
        (SoundRule(), 16_000 * 40, 1_000),
        (SoundRule(blocks="hundreds"), 16_000, 13),
        (SoundRule(blocks="hundreds"), 16_000 + 160, 14),
        (SoundRule(blocks="hundreds"), 160 * 50, 7),
        (SoundRule(fixed_tokens=188, marks=4), 100, 192),
        (SoundRule(blocks="padded", marks=2, max_tokens=750), 16_000, 27),
        (SoundRule(blocks="padded", marks=2, max_tokens=750), 16_000 * 40, 752),
        (SoundRule(blocks="windows", stacked_frames=8), 400 + 159, 1),
        (SoundRule(blocks="windows", stacked_frames=8), 16_000, 13),
        (SoundRule(blocks="padded clips", stacked_frames=8), 1, 375),
        (SoundRule(blocks="padded clips", stacked_frames=8), 480_000, 375),
        (SoundRule(blocks="padded clips", stacked_frames=8), 480_001, 750),
        (SoundRule(blocks="clips", stacked_frames=16), 160_000, 63),
        (SoundRule(blocks="clips", stacked_frames=16), 480_001, 189),
    ],
)
def test_tokens_of_a_sound_follow_its_frames(rule: SoundRule, samples: int, count: int) -> None:
    assert rule.tokens(samples).length == count


def test_sound_of_a_few_samples_is_rejected() -> None:
    with pytest.raises(RuleError, match=r"The audio \(len=100\) is too short"):
        SoundRule().tokens(100)
    with pytest.raises(RuleError, match=r"The audio \(len=399\) is too short"):
        SoundRule(blocks="windows", stacked_frames=8).tokens(399)


def ask(data: str, form: str = "wav") -> tuple[int, Any]:
    client = app_of(
        *("--model", "Qwen/Qwen2-Audio-7B-Instruct", "--enable-prompt-tokens-details"),
        *("--media-duration", "2s"),
    ).test_client()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": form}}
    if data.startswith("http"):
        part = {"type": "audio_url", "audio_url": {"url": data}}
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    answer = client.post("/v1/chat/completions", json=body)
    return answer.status_code, answer.get_json()


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (base64.b64encode(wav(48_000, 48_000)).decode(), 25),
        ("https://example.com/a.wav", 50),
    ],
)
def test_sound_of_a_request_has_the_tokens_of_its_duration(data: str, count: int) -> None:
    status, answer = ask(data)
    assert status == 200, answer
    details = answer["usage"]["prompt_tokens_details"]
    assert details["multimodal_tokens"] == {"audio": count}


@pytest.mark.parametrize("data", [b"hello", b"OggS" + bytes(50), b"\0\0\0\x20ftypisom" + bytes(50)])
def test_data_that_are_no_sound_are_rejected(data: bytes) -> None:
    status, answer = ask(base64.b64encode(data).decode())
    assert status == 400
    assert answer["error"]["message"].startswith("Invalid or corrupted audio data.")
