"""Media of messages in the answers of a server: models, limits, addresses, and sizes."""

from typing import Any

import pytest
from flask.testing import FlaskClient

from app.core.settings import load
from config.declaration import ConfigError
from tests.application import app_of
from tests.extensions.media.images import data_url, gif, image_part, png

VISION = "Qwen/Qwen2.5-VL-7B-Instruct"
TEXT = {"type": "text", "text": "What is this?"}


def client_of(*flags: str) -> FlaskClient:
    return app_of("--enable-prompt-tokens-details", *flags).test_client()


def ask(client: FlaskClient, *parts: Any, **fields: Any) -> tuple[int, Any]:
    messages = [{"role": "user", "content": [*parts]}]
    answer = client.post(
        "/v1/chat/completions", json={"messages": messages, "max_tokens": 1, **fields}
    )
    return answer.status_code, answer.get_json()


def image_tokens(client: FlaskClient, *parts: Any) -> int:
    status, answer = ask(client, *parts, TEXT)
    assert status == 200, answer
    tokens: int = answer["usage"]["prompt_tokens_details"]["multimodal_tokens"]["image"]
    return tokens


def test_image_of_a_model_by_name_costs_what_it_costs_in_vllm() -> None:
    client = client_of("--model", VISION)
    assert image_tokens(client, image_part(data_url(png(672, 448)))) == 384
    large = image_part(data_url(png(1288, 966)))
    assert image_tokens(client, large) == 1564
    _, alone = ask(client, TEXT)
    _, both = ask(client, large, TEXT)
    added = both["usage"]["prompt_tokens"] - alone["usage"]["prompt_tokens"]
    assert added == 1564 + 1  # the line break of the embedded template


def test_size_of_a_url_is_its_fragment_or_the_default() -> None:
    client = client_of("--model", VISION, "--media-size", "672x448")
    assert image_tokens(client, image_part("https://example.com/cat.png")) == 384
    assert image_tokens(client, image_part("https://example.com/cat.png#56x56")) == 4
    assert image_tokens(client, image_part("https://example.com/cat.png#cat")) == 384


def test_answer_says_which_sizes_were_used() -> None:
    client = client_of("--model", VISION, "--media-size", "672x448", "--media-duration", "2s")
    parts = [
        image_part(data_url(png(56, 56))),
        image_part("https://example.com/cat.png"),
        image_part("https://example.com/cat.png#56x64"),
        {"type": "video_url", "video_url": {"url": "https://example.com/cat.mp4"}},
    ]
    for stream in (False, True):
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1, "stream": stream}
        answer = client.post("/v1/chat/completions", json=body)
        sizes = "image 672x448, image 56x64, video 672x448 2s"
        assert answer.headers["X-Understudy-Media"] == sizes
    body = {"messages": [{"role": "user", "content": parts[:1]}], "max_tokens": 1}
    assert "X-Understudy-Media" not in client.post("/v1/chat/completions", json=body).headers


def test_sizes_in_the_header_of_an_answer_are_bounded() -> None:
    client = client_of("--model", VISION, "--limit-mm-per-prompt", '{"image": 100}')
    messages = [{"role": "user", "content": [image_part("https://example.com/cat.png#56x64")] * 99}]
    answer = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert len(answer.headers["X-Understudy-Media"].split(", ")) == 32


def test_arguments_of_the_processor_count() -> None:
    client = client_of("--model", VISION, "--mm-processor-kwargs", '{"max_pixels": 50176}')
    assert image_tokens(client, image_part(data_url(png(672, 448)))) < 65


def test_tokens_of_images_count_for_the_context() -> None:
    client = client_of("--model", VISION, "--max-model-len", "1000")
    status, answer = ask(client, image_part(data_url(png(1288, 966))), TEXT)
    assert status == 400
    assert answer["error"]["message"].startswith("Input length (1575) exceeds model's maximum")


def test_model_without_rules_keeps_the_placeholder_of_its_template() -> None:
    client = client_of()
    assert image_tokens(client, image_part(data_url(png(2000, 2000)))) < 10


def test_text_model_rejects_media_with_the_words_of_vllm() -> None:
    for flags in (("--model", "Qwen/Qwen3-0.6B"), ("--model", VISION, "--multimodal=false")):
        status, answer = ask(client_of(*flags), image_part(data_url(png(9, 9))))
        assert status == 400
        assert answer["error"]["message"] == f"{flags[1]} is not a multimodal model"
        assert answer["error"]["param"] is None


def test_text_model_can_be_told_to_accept_media() -> None:
    client = client_of("--model", "Qwen/Qwen3-0.6B", "--multimodal=true")
    assert ask(client, image_part(data_url(png(9, 9))))[0] == 200


@pytest.mark.parametrize("flags", [(), ("--model", VISION)])
def test_limits_are_those_of_the_server_and_the_model(flags: tuple[str, ...]) -> None:
    limits = '{"image": {"count": 1, "width": 512, "height": 512}, "video": 0}'
    client = client_of(*flags, "--limit-mm-per-prompt", limits)
    image = image_part(data_url(gif(9, 9)))
    assert ask(client, image)[0] == 200
    status, answer = ask(client, image, image)
    message = "At most 1 image(s) may be provided in one prompt."
    assert (status, answer["error"]["param"]) == (400, "image")
    assert answer["error"]["message"].startswith(message)
    video = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
    assert ask(client, video)[0] == 400


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--limit-mm-per-prompt", "[]"),
        ("--limit-mm-per-prompt", '{"image": -1}'),
        ("--limit-mm-per-prompt", '{"image": "many"}'),
        ("--limit-mm-per-prompt", '{"image": {"count": 1, "sides": 2}}'),
        ("--limit-mm-per-prompt", '{"image": {"width": 0}}'),
        ("--mm-processor-kwargs", "1"),
        ("--mm-hasher-algorithm", "md5"),
        ("--media-size", "large"),
        ("--media-size", "0x10"),
    ],
)
def test_wrong_setting_is_rejected(flag: str, value: str) -> None:
    with pytest.raises(ConfigError, match=flag.removeprefix("--")):
        load(("--model", VISION, flag, value), {})


def test_argument_that_the_rule_cannot_use_stops_the_start() -> None:
    from app.extensions.media import Media

    settings = load(("--model", VISION, "--mm-processor-kwargs", '{"max_pixels": "x"}'), {})
    with pytest.raises(ConfigError, match="mm-processor-kwargs"):
        Media.prepare(settings)


def test_third_image_of_a_prompt_leaves_all_of_them_uncropped() -> None:
    client = client_of("--model", "deepseek-ai/deepseek-vl2-tiny", "--max-model-len", "30000")
    image = image_part(data_url(png(1152, 1152)))
    assert image_tokens(client, image) == 210 + 42 * 43 + 1
    assert image_tokens(client, image, image) == 2 * (210 + 42 * 43 + 1)
    assert image_tokens(client, image, image, image) == 3 * (210 + 14 * 15 + 1)


def cache_counts(client: FlaskClient) -> dict[str, float]:
    text = client.get("/metrics").get_data(as_text=True)
    return {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("vllm:mm_cache") and "_total" in line
    }


def test_media_cache_is_counted() -> None:
    client = client_of("--model", VISION)
    image = image_part(data_url(png(100, 100)))
    for _ in range(2):
        assert ask(client, image, image)[0] == 200
    assert cache_counts(client) == {"vllm:mm_cache_queries_total": 4, "vllm:mm_cache_hits_total": 3}


def test_tokens_of_a_prefill_are_those_of_the_decoder() -> None:
    """Images in one of several messages, and several in a message, keep their places."""
    client = client_of("--model", VISION)
    image = image_part(data_url(png(56, 56)))
    messages = [
        {"role": "user", "content": [image, TEXT]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": [TEXT, image, image]},
    ]
    counted = client.post("/tokenize", json={"messages": messages}).get_json()["count"]
    body = {"messages": messages, "max_tokens": 1}
    usage = client.post("/v1/chat/completions", json=body).get_json()["usage"]
    assert usage["prompt_tokens"] == counted
    assert usage["prompt_tokens_details"]["multimodal_tokens"] == {"image": 12}


def test_long_uuid_is_shortened() -> None:
    client = client_of("--model", VISION, "--enable-scale-out")
    part = image_part(data_url(png(56, 56)), uuid="x" * 100_000)
    messages = [{"role": "user", "content": [part]}]
    answer = client.post("/v1/chat/completions/render", json={"messages": messages})
    [name] = answer.get_json()["features"]["mm_hashes"]["image"]
    assert len(name) == 64


def test_reset_clears_the_media_cache() -> None:
    client = client_of("--model", VISION, "--server-dev-mode")
    image = image_part(data_url(png(100, 100)))
    for _ in range(2):
        assert ask(client, image)[0] == 200
        assert client.post("/reset_mm_cache").status_code == 200
    counts = {"vllm:mm_cache_queries_total": 2, "vllm:mm_cache_hits_total": 0}
    assert cache_counts(client) == counts


def test_media_of_prompts_without_replies_are_in_a_cache_that_metrics_do_not_count() -> None:
    client = client_of("--model", VISION, "--enable-scale-out")
    known = image_part(data_url(png(56, 56)), uuid="cat")
    named = {"type": "image_url", "image_url": None, "uuid": "cat"}
    messages = [{"role": "user", "content": [known]}]
    for path in ("/tokenize", "/v1/chat/completions/render"):
        assert client.post(path, json={"messages": messages}).status_code == 200
    assert sum(cache_counts(client).values()) == 0
    assert ask(client, named)[0] == 400
    messages = [{"role": "user", "content": [named]}]
    assert client.post("/tokenize", json={"messages": messages}).status_code == 200
