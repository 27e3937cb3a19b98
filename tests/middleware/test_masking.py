"""What looks like a secret is hidden in logs; what does not is left alone."""

import json
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.serving.middleware.masking import MASK, is_secret, mask_headers, mask_query, mask_text

SECRETS = (
    *("Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "X-Api-Key", "X-Admin-Key", "apikey"),
    *("api_key", "api-keys", "openaiApiKey", "hf-token", "accessToken", "token", "X-Amz-Security-Token"),
    *("password", "client_secret", "clientSecrets", "DB_PASSWORD", "credentials", "X-Signature", "key"),
)
OTHERS = (
    *("max_tokens", "tokens", "token_ids", "stop_token_ids", "prompt_tokens_details", "return_token_strs"),
    *("x-ratelimit-limit-tokens", "monkey", "Content-Type", "model", "keyboard", "secretary", "skip", ""),
    *("tokenizer", "cookies_allowed", "top_k", "author", "Accept", "traceparent", "turkey"),
)


def test_the_last_word_of_a_name_says_whether_it_is_a_secrets() -> None:
    assert all(map(is_secret, SECRETS)) and not any(map(is_secret, OTHERS))


def test_headers_and_queries_keep_their_names() -> None:
    asked = [("Authorization", "Bearer a"), ("Accept", "*/*")]
    assert mask_headers(asked) == [("Authorization", MASK), ("Accept", "*/*")]
    for query, masked in (
        ("/v1/models?api_key=a&limit=3&token=", "/v1/models?api_key=***&limit=3&token=***"),
        ("/v1/models", "/v1/models"),
        ("/v1/models?api%5Fkey=a&n=%C3%B6", "/v1/models?api%5Fkey=***&n=%C3%B6"),
    ):
        assert mask_query(query) == masked


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SECRETS), st.text(min_size=4), st.sampled_from([None, 2]), st.booleans())
def test_a_secret_field_is_hidden_wherever_it_is(name: str, secret: str, indent: int, nested: bool) -> None:
    body = {"model": "m", name: secret, "max_tokens": 5}
    text = json.dumps({"tools": [{"headers": body}]} if nested else body, indent=indent)
    masked = json.loads(mask_text(text))
    found = masked["tools"][0]["headers"] if nested else masked
    assert found == {**body, name: MASK}


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(OTHERS), st.text() | st.integers() | st.lists(st.integers())))
def test_other_fields_stay_as_they_are(body: dict[str, object]) -> None:
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
def test_no_way_of_writing_a_secret_shows_it(text: str) -> None:
    assert "hid" not in mask_text(text)


def test_what_is_no_secret_stays() -> None:
    def body(key: str) -> str:
        return json.dumps({"arguments": json.dumps({"city": 'Paris, "TX"', "api_key": key}), "n": 1})

    for text, masked in (
        (body("hidden"), body("***")),
        ('{"api-key": ["a", "b"], "n": 1}', '{"api-key": "***", "n": 1}'),
        *([r'{"properties":{"api_key":{"type":"string"}},"required":["api_key"]}'] * 2,),
        *(['{"token": " Hi","logprob": -1.0}'] * 2, ['{"token": " Hi","bytes":[72],"logprob":-1.0}'] * 2),
        ('{"token": "Hi"}', '{"token": "***"}'),
        ("curl -H 'Authorization: Bearer sk-a.b_c' url", "curl -H 'Authorization: Bearer ***' url"),
    ):
        assert mask_text(text) == masked


def test_a_body_that_is_cut_shows_no_part_of_a_secret() -> None:
    text = '{"n": 1, "api_key": "' + "abcdefgh" * 8 + '"}'
    for cut in range(len('{"n": 1, "api_key": "'), 60):
        assert mask_text(text[:cut]) == '{"n": 1, "api_key": "***"'


@settings(max_examples=30, deadline=None)
@given(st.text())
def test_any_text_is_masked_without_an_error(text: str) -> None:
    assert isinstance(mask_text(text), str)
    assert isinstance(mask_query(text), str)


PIECES = (
    *('"', "\\", '"key', '"key"', '"key":', '"key":[', '"key" ' + " " * 50, "Bearer ", "key", 'a"'),
    *("[", '\\"', '"\\"', '"\\n"', '"key":{"a":', '"key":{"', '"\\\\\\"key\\\\\\": '),
)


@pytest.mark.parametrize("piece", [*PIECES, *('"\\n",', '"key":"a",', '"a', "a")])
def test_masking_takes_time_linear_in_the_length(piece: str) -> None:
    def seconds(length: int) -> float:
        text, start_s = piece * (length // len(piece)), process_time()
        mask_text(text)
        return process_time() - start_s

    assert seconds(512 << 10) < 0.2 + 60 * seconds(32 << 10)
