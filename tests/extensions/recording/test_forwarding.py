"""A target gets the path that the client sent, and no path that leaves the API."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.server.http.context import context_of
from app.core.server.http.errors import ApiError
from app.extensions.recording.forwarding import check_path, origin_form, target_without_root_path
from app.extensions.recording.request_form import comparable_path
from tests.application import request

SENT_AS_THEY_ARE = (
    "/v1/models/meta%2Fllama",
    "/v1/models/what%3Fnow",
    "/v1/models/a%20b",
    "/v1/models/%C3%BC%E6%9D%B1",
    "/v1/models/100%25",
    "/v1/models/x%0d%0aforged",
    "/v1/models/%2f?a=%2F&b=%0d%0a",
    "/v1/files/a..b/.hidden",
    "/v1/models/a/../b",
    "/v1/models/%zz",
    "/v1/",
)
LEAVING = (
    "/v1/../admin/config",
    "/v1/models/../../admin",
    "/v1/%2e%2e/admin",
    "/v1/.%2E/admin",
    "/v1/%252e%252e/admin",
    "/v1/..%2fadmin",
    "/v1/..%2Fadmin",
    "/v1%2f..%2fadmin",
    "/v1/..\\admin",
    "/v1/..%5cadmin",
    "/v1\\..\\admin",
    "/v1%5c..%5cadmin",
    "/v1/..;/admin",
    "/v1/..;x=1/admin",
    "/v1/a//../../admin",
    "/v1/./.././admin",
    "/v1/..",
    "/v1/../../v1/models",
    "/v1%2Fmodels",
    "/..",
    "/%2e%2e/v1/models",
    "//../../v1",
    "/v1/%25252525252e",
    "/v1/a%2fb/%2e%2e/%2e%2e/admin",
    "/v1/a\\b/../../admin",
    "/v1/..%00/admin",
    "v1/models",
    "*",
    "",
)


def sent(target: str, path: str) -> Any:
    context = request(path, "GET")
    context.target = target
    return context


@pytest.mark.parametrize("target", SENT_AS_THEY_ARE)
def test_path_is_forwarded_as_it_was_sent(target: str) -> None:
    assert origin_form(target) == target
    check_path(target)


@pytest.mark.parametrize("target", LEAVING)
def test_path_that_resolves_outside_its_first_segment_is_rejected(target: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_path(target)
    assert (refused.value.status, refused.value.type) == (400, "BadRequestError")


SEGMENTS = (
    "..",
    ".",
    "a",
    "",
    "%2e%2e",
    "..;",
    "%2E.",
    "a;b",
    "b%2f..",
    "b%2fb",
    "..%5c",
    "%252e%252e",
    "c\\c",
)
SWITCHES = st.booleans()


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(SEGMENTS), max_size=7),
    SWITCHES,
    SWITCHES,
    SWITCHES,
    SWITCHES,
    st.integers(0, 2),
)
@example(["b%2fb", "%2e%2e", "%2e%2e"], True, False, False, False, 1)
@example(["c\\c", "..", ".."], False, False, False, False, 0)
@example(["", "..", "a", "..", ".."], False, False, False, True, 0)
def test_forwarded_path_stays_below_its_first_segment(
    segments: list[str], dots: bool, slashes: bool, backslashes: bool, merges: bool, rounds: int
) -> None:
    """A server may decode, resolve, merge slashes and drop parameters as it likes:

    it stays below /v1.
    """
    path = "/v1/" + "/".join(segments)
    try:
        check_path(path)
    except ApiError:
        return
    for _ in range(rounds):
        for escape, character, is_decoded in (
            ("%2e", ".", dots),
            ("%2f", "/", slashes),
            ("%5c", "\\", backslashes),
            ("%25", "%", True),
        ):
            if is_decoded:
                path = path.replace(escape, character).replace(escape.upper(), character)
    if backslashes:
        path = path.replace("\\", "/")
    resolved: list[str] = []
    for segment in path.split("/")[1:]:
        name = segment.partition(";")[0]
        if name == "..":
            resolved.pop()
        elif name != "." and (segment or not merges):
            resolved.append(segment)
    assert resolved[0] == "v1"


@pytest.mark.parametrize(
    ("target", "forwarded"),
    [
        ("http://host:1/v1/models?a=1", "/v1/models?a=1"),
        ("http://host", "/"),
        ("/v1/models#part?a=1", "/v1/models"),
        ("/v1/models/\xc3\xbc", "/v1/models/%C3%BC"),
        ("/v1/models/東", "/v1/models/%E6%9D%B1"),
        ("/v1/models/a b?c d", "/v1/models/a%20b?c%20d"),
        ("/v1/models/a\r\nX: 1", "/v1/models/a%0D%0AX:%201"),
    ],
)
def test_request_target_is_reduced_to_path_and_query(target: str, forwarded: str) -> None:
    assert origin_form(target) == forwarded


@pytest.mark.parametrize(
    ("target", "path", "forwarded"),
    [
        ("/v1/a%2Fb?c=%20", "/v1/a/b", "/v1/a%2Fb?c=%20"),
        ("/proxy/path/v1/a%2Fb?c=1", "/v1/a/b", "/v1/a%2Fb?c=1"),
        ("/pro%78y/v1/a%2Fb", "/v1/a/b", "/v1/a%2Fb"),
        ("/proxy%2Fpath/v1/a%2Fb", "/v1/a/b", "/v1/a/b"),
        ("/v1/v1/x", "/v1/x", "/v1/x"),
        ("/v1/%ff", "/v1/\ufffd", "/v1/%ff"),
        ("/something/else", "/v1/a b", "/v1/a%20b"),
    ],
)
def test_root_path_is_not_forwarded(target: str, path: str, forwarded: str) -> None:
    assert target_without_root_path(sent(target, path)) == forwarded


@pytest.mark.parametrize(
    ("given_by_server", "target"),
    [
        ({"RAW_URI": "/v1/a%2Fb?c=1"}, "/v1/a%2Fb?c=1"),
        ({"REQUEST_URI": "/mount/v1/a%2Fb?c=1"}, "/v1/a%2Fb?c=1"),
        ({}, "/v1/a/b?c=1"),
    ],
)
def test_request_target_is_found_in_every_kind_of_wsgi_environ(
    given_by_server: dict[str, str], target: str
) -> None:
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/v1/a/b",
        "QUERY_STRING": "c=1",
        "wsgi.url_scheme": "http",
        "wsgi.input": None,
        **given_by_server,
    }
    assert target_without_root_path(context_of(environ)) == target


def test_special_characters_of_a_forwarded_path_are_encoded_again() -> None:
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/v1/a?b#c%2F\r\nX: ü".encode().decode("latin-1"),
        "wsgi.url_scheme": "http",
        "wsgi.input": None,
    }
    context = context_of(environ)
    assert target_without_root_path(context) == "/v1/a%3Fb%23c%252F%0D%0AX:%20%C3%BC"
    assert context.query() == {}


def test_compared_paths_distinguish_encoded_and_literal_separators() -> None:
    assert comparable_path("/v1/%61%20%c3%bc") == comparable_path("/v1/a ü")
    assert (
        comparable_path("/v1/a%2fb") == comparable_path("/v1/a%2Fb") != comparable_path("/v1/a/b")
    )
    assert comparable_path("/v1/a%3Fb") != comparable_path("/v1/a?b")
    assert comparable_path("/v1/%252F") != comparable_path("/v1/%2F")
