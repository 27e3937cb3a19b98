"""The table of the formats that can be imported. A file has the first format that fits."""

from collections.abc import Mapping
from typing import Final

from workbench.imports import (
    aimock,
    archives,
    cassette,
    curl,
    envoy,
    exchange_log,
    litellm,
    litellm_log,
    mock_llm,
    mockllm,
    otlp,
)
from workbench.imports.fixture_format import Format, Notation

FORMATS: Final[Mapping[str, Format]] = {
    "aimock": Format(
        "fixtures of aimock", aimock.is_aimock, aimock.import_aimock, keys=("fixtures", "llm")
    ),
    "mockllm": Format(
        "responses of mockllm", mockllm.is_mockllm, mockllm.import_mockllm, keys=("responses",)
    ),
    "mock-llm": Format(
        "rules of mock-llm", mock_llm.is_mock_llm, mock_llm.import_mock_llm, keys=("rules",)
    ),
    "vcr": Format(
        "cassettes of VCR",
        cassette.is_cassette,
        cassette.import_cassette,
        keys=("interactions", "http_interactions"),
    ),
    "litellm": Format(
        "mocks in a configuration of LiteLLM",
        litellm.is_litellm,
        litellm.import_litellm,
        keys=("model_list",),
    ),
    "har": Format("HTTP Archives", archives.is_har, archives.import_har, keys=("log",)),
    "nock": Format("recordings of nock", archives.is_nock, archives.import_nock, keys=("scope",)),
    "wiremock": Format(
        "mappings of WireMock",
        archives.is_wiremock,
        archives.import_wiremock,
        keys=("mappings", "request"),
    ),
    "otlp": Format(
        "exports of OpenTelemetry with gen_ai attributes",
        otlp.is_otlp,
        otlp.import_otlp,
        keys=("resourceSpans", "resourceLogs", "attributes"),
        notation=Notation.RECORDS,
    ),
    "litellm-log": Format(
        "logs of LiteLLM",
        litellm_log.is_litellm_log,
        litellm_log.import_litellm_log,
        keys=("call_type",),
        notation=Notation.RECORDS,
    ),
    "envoy": Format(
        "access logs of Envoy with bodies, and its taps",
        envoy.is_envoy,
        envoy.import_envoy,
        keys=(*envoy.TAP_KEYS, *envoy.REQUEST_BODY_KEYS, *envoy.RESPONSE_BODY_KEYS),
        notation=Notation.RECORDS,
    ),
    "jsonl": Format(
        "JSON lines with a request and its response",
        exchange_log.is_exchange_log,
        exchange_log.import_exchange_log,
        keys=(*exchange_log.REQUEST_KEYS, *exchange_log.RESPONSE_KEYS, "custom_id"),
        notation=Notation.RECORDS,
    ),
    "curl": Format(
        "transcripts of curl -v", curl.is_transcript, curl.import_transcript, notation=Notation.TEXT
    ),
}


def list_of_formats() -> str:
    """Returns what can be imported, for messages."""
    *first, last = (fmt.about for fmt in FORMATS.values())
    return f"{', '.join(first)}, and {last}"
