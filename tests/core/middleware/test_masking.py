"""Secrets are masked in logs, and all other text is unchanged."""

import json
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.server.middleware.masking import (
    MASK,
    mask_headers,
    mask_pieces,
    mask_query,
    mask_text,
    without_cut_url,
)
from config.secret_names import is_secret, looks_like_secret

SECRETS = (
    *(
        "Authorization",
        "Proxy-Authorization",
        "Cookie",
        "Set-Cookie",
        "X-Api-Key",
        "X-Admin-Key",
        "apikey",
    ),
    *(
        "api_key",
        "api-keys",
        "openaiApiKey",
        "hf-token",
        "accessToken",
        "token",
        "X-Amz-Security-Token",
    ),
    *(
        "password",
        "client_secret",
        "clientSecrets",
        "DB_PASSWORD",
        "credentials",
        "X-Signature",
        "key",
    ),
    *("pwd", "DB_PWD", "userPwd", "auth", "proxy-auth", "httpAuth", "passwords", "passwd"),
)
OTHERS = (
    *(
        "max_tokens",
        "tokens",
        "token_ids",
        "stop_token_ids",
        "prompt_tokens_details",
        "return_token_strs",
    ),
    *(
        "x-ratelimit-limit-tokens",
        "monkey",
        "Content-Type",
        "model",
        "keyboard",
        "secretary",
        "skip",
        "",
    ),
    *("tokenizer", "cookies_allowed", "top_k", "author", "Accept", "traceparent", "turkey"),
    *("authors", "oauth", "pwdx", "authority", "pwds"),
)


RANDOM = "f3b9c1d27a6e40852c9d1e7b"
PLAIN_VALUES = (
    "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
    'vllm:request_success_total{finished_reason="stop"}',
    "rate(vllm:prompt_tokens_total[5m])",
    "2026-11-29T10:30:00.123456Z",
    "20261129T103000Z",
    "1764412345678901234",
    "550e8400-e29b-41d4-a716-446655440000",
    "chatCompletionRequestMessage",
    "",
)


@pytest.mark.parametrize(
    "value",
    [
        RANDOM,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "hf_abcdefghijklmnopqrst",
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "prefix/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ],
)
def test_random_values_and_keys_of_services_look_like_secrets(value: str) -> None:
    assert looks_like_secret(value)


@pytest.mark.parametrize("value", PLAIN_VALUES)
def test_names_numbers_dates_and_queries_do_not_look_like_secrets(value: str) -> None:
    assert not looks_like_secret(value)
    assert mask_query(f"/v1?a={value}") == f"/v1?a={value}"


def test_numbers_of_documents_in_texts_are_no_secrets() -> None:
    text = f"See https://host/page?id={RANDOM}&sig=abc."
    assert mask_text(text) == f"See https://host/page?id={RANDOM}&sig=***"


def test_field_is_masked_if_the_last_word_of_its_name_denotes_a_secret() -> None:
    assert all(map(is_secret, SECRETS)) and not any(map(is_secret, OTHERS))


def test_masked_headers_and_queries_keep_their_names() -> None:
    headers = [("Authorization", "Bearer a"), ("Accept", "*/*")]
    assert mask_headers(headers) == [("Authorization", MASK), ("Accept", "*/*")]
    for query, masked in (
        ("/v1/models?api_key=a&limit=3&token=", "/v1/models?api_key=***&limit=3&token=***"),
        ("/v1/models", "/v1/models"),
        ("/v1/models?api%5Fkey=a&n=%C3%B6", "/v1/models?api%5Fkey=***&n=%C3%B6"),
        ("/v1?password=a;b?c&n=1", "/v1?password=***&n=1"),
        (
            "/v1?X-Amz-Credential=a%2Fb&X-Amz-Date=1&n=1",
            "/v1?X-Amz-Credential=***&X-Amz-Date=***&n=1",
        ),
        ("/v1?sv=2024&sig=a%2Bb%3D&n=1", "/v1?sv=2024&sig=***&n=1"),
        ("/v1?Signature=a&n=1", "/v1?Signature=***&n=1"),
        (f"/v1?n={RANDOM}&m=1", "/v1?n=***&m=1"),
        ("/v1?n=sk%2Dproj-abcdefghijkl&m=1", "/v1?n=***&m=1"),
        (f"/v1?u=https%3A%2F%2Fhost%2F%3Fv%3D{RANDOM}", "/v1?u=***"),
        ("/v1?n=1;password=a&n=2", "/v1?n=1;password=***&n=2"),
        ("/v1?u=https://me:a@host/b&n=1", "/v1?u=https://me:***@host/b&n=1"),
        ("/v1?u=https%3A%2F%2Fme%3Aa%40host&n=1", "/v1?u=https%3A%2F%2Fme%3A***%40host&n=1"),
        ("/v1?u=https%3A%2F%2Fhost%2F%3Fkey%3Da", "/v1?u=https%3A%2F%2Fhost%2F%3Fkey%3D***"),
    ):
        assert mask_query(query) == masked


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SECRETS), st.text(min_size=4), st.sampled_from([None, 2]), st.booleans())
def test_secret_fields_are_masked_at_any_depth(
    name: str, secret: str, indent: int, nested: bool
) -> None:
    body = {"model": "m", name: secret, "max_tokens": 5}
    text = json.dumps({"tools": [{"headers": body}]} if nested else body, indent=indent)
    masked = json.loads(mask_text(text))
    holder = masked["tools"][0]["headers"] if nested else masked
    assert holder == {**body, name: MASK}


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.sampled_from(OTHERS), st.text() | st.integers() | st.lists(st.integers()))
)
def test_fields_that_are_not_secret_are_unchanged(body: dict[str, object]) -> None:
    assert json.loads(mask_text(json.dumps(body))) == body


@pytest.mark.parametrize(
    "text",
    [
        r'{"api\u005fkey": "hidden"}',
        r'{"\u0061pi_key":"hidden","n":1}',
        '{"api_key": ["[", "hidden"], "n": 1}',
        '{"credentials": {"user": {"name": "hidden"}}}',
        '{"api_key": ["hidden", {"a": 1',
        json.dumps({"arguments": json.dumps({"nested": json.dumps({"api_key": ["hidden"]})})}),
        json.dumps({"arguments": json.dumps({"api_key": "hidden"})})[:-5],
        r"{\"api_key\": \"hidden\"}",
        r'{"a": \"x\", "api_key": "hidden"}',
        r'{"a": "Bearer\u0020hidden"}',
        r'{"a": "Authorization: Bearer hid\u0064en"}',
        r'{"password": "\x hidden"}',
    ],
)
def test_secrets_are_masked_in_every_notation(text: str) -> None:
    assert "hid" not in mask_text(text)


def test_text_without_secrets_is_unchanged() -> None:
    def body(key: str) -> str:
        return json.dumps(
            {"arguments": json.dumps({"city": 'Paris, "TX"', "api_key": key}), "n": 1}
        )

    for text, masked in (
        (body("hidden"), body("***")),
        ('{"api-key": ["a", "b"], "n": 1}', '{"api-key": "***", "n": 1}'),
        *([r'{"properties":{"api_key":{"type":"string"}},"required":["api_key"]}'] * 2,),
        *(
            ['{"token": " Hi","logprob": -1.0}'] * 2,
            ['{"token": " Hi","bytes":[72],"logprob":-1.0}'] * 2,
        ),
        ('{"token": "Hi"}', '{"token": "***"}'),
        ("curl -H 'Authorization: Bearer sk-a.b_c' url", "curl -H 'Authorization: Bearer ***' url"),
    ):
        assert mask_text(text) == masked


def test_truncated_body_shows_no_part_of_a_secret() -> None:
    text = '{"n": 1, "api_key": "' + "abcdefgh" * 8 + '"}'
    for cut in range(len('{"n": 1, "api_key": "'), 60):
        assert mask_text(text[:cut]) == '{"n": 1, "api_key": "***"'


URLS = (
    ("https://me:hidden@host/path", "https://me:***@host/path"),
    ("https://me:hid@den@host:8000", "https://me:***@host:8000"),
    ("postgres://:hidden@db", "postgres://:***@db"),
    ("https://host/?pwd=hidden&n=1", "https://host/?pwd=***&n=1"),
    ("https://host/#access_token=hidden&n=1", "https://host/#access_token=***&n=1"),
    ("https://host/?n=1&amp;key=hidden", "https://host/?n=1&amp;key=***"),
    ("https://host:8000/a@b", "https://host:8000/a@b"),
    ("https://me@host/", "https://me@host/"),
    ("http://[::1]:8000/?n=1#top", "http://[::1]:8000/?n=1#top"),
    ("https://host/?max_tokens=5", "https://host/?max_tokens=5"),
)


@pytest.mark.parametrize(("url", "masked"), URLS)
def test_secrets_in_urls_are_masked_in_text_json_and_headers(url: str, masked: str) -> None:
    assert mask_text(f"see {url} now") == f"see {masked} now"
    for dump in (
        json.dumps,
        lambda value: json.dumps(value).replace("/", "\\/").replace("&", "\\u0026"),
    ):
        text = dump({"messages": [{"content": f"see {url} now"}]})
        assert json.loads(mask_text(text)) == {"messages": [{"content": f"see {masked} now"}]}
    assert mask_headers([("Referer", url)]) == [("Referer", masked)]


FORM = "application/x-www-form-urlencoded"
MULTIPART = "\r\n".join(
    (
        *("--limit", 'Content-Disposition: form-data; name="n"', "", "1"),
        *(
            "--limit",
            "Content-Type: text/plain",
            'content-disposition: form-data; NAME="api_key"',
            "",
        ),
        *(
            "hidden",
            "--limi hidden",
            "--limit",
            'Content-Disposition: form-data; name=pwd; filename="a"',
            "",
        ),
        *(
            "hidden",
            "--limit",
            "Content-Disposition: form-data; name*=UTF-8''api%5Fkey",
            "",
            "hidden",
        ),
        *(
            "--limit",
            'Content-Disposition: form-data; name="text"',
            "",
            '{"auth": "hidden", "n": 2}',
        ),
        *("--limit", 'Content-Disposition: form-data; name="token"', "", "", "--limit--", ""),
    )
)


def test_only_secret_fields_of_form_bodies_are_masked() -> None:
    for text, masked in (
        ("api_key=a&n=1&pwd=b", "api_key=***&n=1&pwd=***"),
        ("n=1&api%5Fkey=a", "n=1&api%5Fkey=***"),
        ("payload=%7B%22auth%22%3A%22a%22%7D&n=+", "payload=%7B%22auth%22%3A%22***%22%7D&n=+"),
        ("n=Bearer+a", "n=Bearer+***"),
    ):
        assert mask_text(text, content_type=f"{FORM}; charset=utf-8") == mask_text(text) == masked
    assert mask_text('n=1 2&password=a "b" {c};d', content_type=FORM) == "n=1 2&password=***"
    assert (
        mask_text('{"n": "a=b", "key": "a&b"}', content_type=FORM) == '{"n": "a=b", "key": "***"}'
    )
    masked = mask_text(MULTIPART)
    assert mask_text(MULTIPART, content_type="multipart/form-data; boundary=limit") == masked
    preamble = "a preamble\r\n"
    assert (
        mask_text(preamble + MULTIPART, content_type='Multipart/x; boundary="limit"')
        == preamble + masked
    )
    assert "hidden" not in masked and masked.count(MASK) == 5
    assert masked.count("--limit") == MULTIPART.count("--limit") and '"n": 2' in masked
    for cut in range(len(MULTIPART)):
        assert "hid" not in mask_text(MULTIPART[:cut])


def test_text_in_pieces_is_masked_like_the_complete_text() -> None:
    for text in (MULTIPART, "api_key=hidden&n=1", "see https://me:hidden@host/?pwd=hidden now"):
        pieces = mask_pieces([text[start : start + 3] for start in range(0, len(text), 3)])
        assert "".join(pieces) == mask_text(text)


def test_truncated_text_never_ends_within_a_password() -> None:
    text = 'see "http://host:80" and https://me:hidden@host'
    for cut in range(text.index("hidden"), text.index("@")):
        assert without_cut_url(text[:cut]) == 'see "http://host:80" and https://'
    for whole in ("", "a", "https://host/", 'x "http://a:1"'):
        assert without_cut_url(whole) == whole


@settings(max_examples=30, deadline=None)
@given(st.text())
def test_any_text_is_masked_without_an_error(text: str) -> None:
    assert isinstance(mask_text(text), str)
    assert isinstance(mask_query(text), str)
    for content_type in (FORM, "multipart/form-data; boundary=0", "multipart/form-data"):
        assert isinstance(mask_text(text, content_type=content_type), str)


PIECES = (
    *('"', "\\", '"key', '"key"', '"key":', '"key":[', '"key" ' + " " * 50, "Bearer ", "key", 'a"'),
    *("[", '\\"', '"\\"', '"\\n"', '"key":{"a":', '"key":{"', '"\\\\\\"key\\\\\\": '),
    *("?a", "&key=", "?a=%41", "://", "://a:b@", "#a=;", '"?a=%41\\"', "?a=%253Fa%253D"),
)
FORM_PIECES = ("?", "?a", "&key=", "a=b&", "a=%41&", "?key=;", "a")
MULTIPART_PIECES = (
    *("--b\r\n", '--b\r\n;name="key"\r\n\r\n', "\n--b", ';name="', ";name", "--b--b", "\r\n", "--"),
)


@pytest.mark.parametrize(
    ("piece", "content_type"),
    [
        *((piece, "") for piece in (*PIECES, '"\\n",', '"key":"a",', '"a', "a")),
        *((piece, FORM) for piece in FORM_PIECES),
        *((piece, "multipart/form-data; boundary=b") for piece in MULTIPART_PIECES),
    ],
)
def test_masking_time_is_linear_in_the_length(piece: str, content_type: str) -> None:
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        start_s = process_time()
        mask_text(text, content_type=content_type)
        mask_query(text)
        return process_time() - start_s

    assert seconds(64 << 10) < 0.025 + 60 * seconds(4 << 10)
