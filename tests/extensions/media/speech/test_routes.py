"""Texts of sounds: answers, streams, languages, scripts, metrics, and models that transcribe."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from app.extensions.media.speech.clips import split
from tests.application import app_of
from tests.extensions.media.speech.forms import form
from tests.extensions.media.speech.tiny_model import FLAGS, write_model
from tests.extensions.media.test_sounds import wav

FILES = Path(__file__).parents[1] / "files"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
RULES = """\
rules:
  - when: {api: transcriptions, message: {contains: names}}
    then: {text: "Ada and Alan."}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny-whisper"
    write_model(path)
    return path


@pytest.fixture(scope="module")
def client(folder: Path) -> FlaskClient:
    return app_of("--model", str(folder), *FLAGS, "--task", "transcription").test_client()


def ask(
    client: FlaskClient, path: str = TRANSCRIPTIONS, sound: bytes = wav(48_000), **fields: str
) -> Any:
    body, content_type = form(fields.items(), sound)
    return client.post(path, data=body, content_type=content_type)


def chunks_of(answer: Any) -> Iterator[dict[str, Any]]:
    lines = answer.get_data(as_text=True).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    for line in lines[:-2]:
        yield json.loads(line.removeprefix("data: "))


def test_film_without_a_sound_has_the_message_of_the_second_decoder(client: FlaskClient) -> None:
    answer = ask(client, sound=(FILES / "mpeg4.avi").read_bytes(), language="en")
    assert answer.status_code == 400
    assert answer.json["error"]["message"] == "No audio stream found."


def test_transcription_has_a_text_and_the_rounded_duration(client: FlaskClient) -> None:
    answer = ask(client, sound=wav(20_000), language="en")
    assert answer.status_code == 200
    assert answer.json["usage"] == {"type": "duration", "seconds": 2}
    assert answer.json["text"]


def test_translation_has_a_text_alone(client: FlaskClient) -> None:
    answer = ask(client, TRANSLATIONS, language="de")
    assert answer.status_code == 200
    assert answer.json.keys() == {"text"}


def test_same_sound_has_the_same_text_and_another_one_another(client: FlaskClient) -> None:
    texts = [ask(client, sound=wav(samples)).json["text"] for samples in (48_000, 48_000, 48_160)]
    assert texts[0] == texts[1] != texts[2]


def test_length_of_a_text_follows_the_duration(client: FlaskClient) -> None:
    lengths = [len(ask(client, sound=wav(16_000 * n)).json["text"].split()) for n in (2, 20)]
    assert 2 <= lengths[0] <= 10
    assert 30 <= lengths[1] <= 90


def test_segments_follow_one_another_up_to_the_end(client: FlaskClient) -> None:
    answer = ask(client, sound=wav(16_000 * 65), language="en", response_format="verbose_json").json
    assert answer["language"] == "en"
    assert answer["duration"] == 65
    segments = answer["segments"]
    assert segments[0]["start"] == 0
    assert segments[-1]["end"] == pytest.approx(65)
    for previous, segment in zip(segments, segments[1:], strict=False):
        assert segment["start"] == pytest.approx(previous["end"])
    assert {segment["seek"] for segment in segments} == {0, 29, 58}
    assert answer["text"] == " ".join(segment["text"] for segment in segments)


def test_stream_shows_the_clips_in_order(client: FlaskClient) -> None:
    sound = wav(16_000 * 65)
    fields: dict[str, Any] = {"language": "en", "stream": "true", "stream_include_usage": "true"}
    chunks = list(chunks_of(ask(client, sound=sound, **fields)))
    text = "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"])
    assert text == ask(client, sound=sound, language="en").json["text"]
    finished = [c for chunk in chunks for c in chunk["choices"] if "finish_reason" in c]
    assert [choice["finish_reason"] for choice in finished] == ["stop"] * 3
    assert chunks[-1]["choices"] == []
    # Four marks, and a token for each 10 ms of the whole sound.
    assert chunks[-1]["usage"]["prompt_tokens"] == 6_504
    assert {chunk["object"] for chunk in chunks} == {"transcription.chunk"}


def test_language_is_detected_by_another_request(folder: Path) -> None:
    client = app_of("--model", str(folder), *FLAGS, "--task", "transcription").test_client()
    answer = ask(client, response_format="verbose_json")
    assert answer.json["language"] == "en"
    metrics = client.get("/metrics").get_data(as_text=True)
    for reason in ("length", "stop"):
        line = f'finished_reason="{reason}",model_name="tiny-whisper"}} 1.0'
        assert f'vllm:request_success_total{{engine="0",{line}' in metrics


def test_script_decides_the_text(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "rules.yaml"
    script.write_text(RULES)
    flags = (*FLAGS, "--task", "transcription", "--script", str(script))
    client = app_of("--model", str(folder), *flags).test_client()
    fields: dict[str, Any] = {"prompt": "The names of people", "language": "en"}
    assert ask(client, **fields).json["text"] == "Ada and Alan."
    assert ask(client, sound=wav(16_000 * 40), **fields).json["text"].strip() == "Ada and Alan."
    assert ask(client, language="en").json["text"] != "Ada and Alan."
    assert ask(client, TRANSLATIONS, **fields).json["text"] != "Ada and Alan."


def test_commas_in_a_sound_are_not_counted(client: FlaskClient) -> None:
    sound = wav(1_000_000)
    assert ask(client, sound=sound[:44] + b",[{" * 600_000, language="en").status_code == 200


def test_sound_may_have_25_mib(client: FlaskClient) -> None:
    sound = wav(1_000)
    filler = bytes((25 << 20) - len(sound))
    assert ask(client, sound=sound + filler, language="en").status_code == 200
    answer = ask(client, sound=sound + filler + b"x", language="en")
    assert answer.status_code == 400
    assert answer.json["error"]["message"].startswith("Maximum file size exceeded")
    assert answer.json["error"]["param"] == "audio_filesize_mb"
    answer = ask(client, sound=sound + filler + bytes(1 << 20), language="en")
    assert answer.status_code == 413
    assert answer.json["error"]["message"] == "The request body is larger than 26 MiB."


def test_file_in_place_of_a_text_is_an_error_without_its_data(client: FlaskClient) -> None:
    body, content_type = form([], bytes(1_000_000))
    body = body.replace(b'name="file"', b'name="model"')
    answer: Any = client.post(TRANSCRIPTIONS, data=body, content_type=content_type)
    assert answer.status_code == 400
    assert (
        "'input': \"UploadFile(filename='a.wav', size=1000000)\"" in answer.json["error"]["message"]
    )
    assert len(answer.get_data()) < 1_000


def test_model_that_transcribes_alone_has_no_chat(client: FlaskClient) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    assert client.post("/v1/chat/completions", json=chat).status_code == 404
    assert client.post("/v1/completions", json={"prompt": "hi"}).status_code == 404


def test_chat_model_that_hears_transcribes_too() -> None:
    client = app_of("--model", "Qwen/Qwen3-Omni-30B-A3B-Instruct").test_client()
    fields = {"stream": "true", "stream_include_usage": "true"}
    usages = []
    for seconds in (2, 4):
        [*_, last] = chunks_of(ask(client, sound=wav(16_000 * seconds), **fields))
        usages.append(last["usage"]["prompt_tokens"])
    assert usages[1] - usages[0] == 26
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert client.post("/v1/chat/completions", json=chat).status_code == 200


@pytest.mark.parametrize("model", ["understudy-tiny", "Qwen/Qwen2.5-VL-7B-Instruct", "unknown"])
def test_other_model_has_no_routes_for_sounds(model: str) -> None:
    client = app_of("--model", model).test_client()
    assert ask(client).status_code == 404
    assert ask(client, TRANSLATIONS).status_code == 404


@given(st.integers(min_value=1, max_value=16_000 * 600))
def test_clips_cover_the_sound_and_none_is_too_long(samples: int) -> None:
    clips = split(samples, 30)
    assert math.fsum(clip.seconds for clip in clips) == pytest.approx(samples / 16_000)
    assert all(0 < clip.seconds <= 30 for clip in clips)
    start_s = 0.0
    for clip in clips:
        assert clip.start_s == pytest.approx(start_s)
        start_s += clip.seconds
