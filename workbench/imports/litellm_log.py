"""Logs of LiteLLM: standard logging payloads, and rows of the table of spend logs.

See https://docs.litellm.ai/docs/proxy/logging_spec. The payload has the messages of a request, its
other parameters, and the whole response, even if the client got a stream.
"""

from workbench.imports.fixture_format import Records
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
)
from workbench.imports.records import (
    as_json,
    error_status,
    has_record,
    import_records,
    interaction,
)

PATHS = {
    "completion": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "embedding": "/v1/embeddings",
    "responses": "/v1/responses",
    "anthropic_messages": "/v1/messages",
    "rerank": "/v1/rerank",
}
"""Path of each type of call, without the letter `a` of asynchronous ones."""
INPUT_KEYS = {
    "text_completion": "prompt",
    "embedding": "input",
    "responses": "input",
}
"""Field of a request that `messages` of the payload stands for."""


def is_litellm_log(records: Records) -> bool:
    """Returns whether an object of the log is a payload."""
    return has_record(records, _is_payload)


def _is_payload(fields: Json) -> bool:
    return "call_type" in fields and fields.keys() >= {"messages", "response"}


def import_litellm_log(records: Records, script: ImportedScript) -> Json:
    """Adds a rule for each payload, and returns the schemas of the tools by name."""
    return import_records(records, script, _interaction)


def _interaction(fields: Json) -> Json | None:
    """Returns the interaction in a payload; None for another record.

    Raises:
        ImportFormatError: the payload has no texts, or is of an API that a script cannot have.
        one of INVALID: it has another form.
    """
    if not _is_payload(fields):
        return None
    call_type = str(fields["call_type"])
    kind = call_type if call_type in PATHS else call_type.removeprefix("a")
    if kind not in PATHS:
        raise ImportFormatError(f"call type {call_type}")
    sent = _request_of(fields, kind)
    error = _error_of(fields)
    if error is not None:
        return interaction(PATHS[kind], sent, {"error": error}, status=error["code"])
    received = as_json(fields["response"])
    if isinstance(received, str) and received and kind == "completion":
        received = {"choices": [{"message": {"content": received}, "finish_reason": "stop"}]}
    if not received:
        raise ImportFormatError("its response was not stored")
    return interaction(PATHS[kind], sent, received)


def _request_of(fields: Json, kind: str) -> Json:
    """Returns the request, as the client sent it if the log has it.

    Raises:
        ImportFormatError: its texts were not stored.
    """
    request = as_json(fields.get("proxy_server_request"))
    if isinstance(request, dict):
        body = as_json(request.get("body", request))
        if isinstance(body, dict) and body:
            return body
    texts = as_json(fields["messages"])
    if not texts:
        raise ImportFormatError("its messages were not stored (store_prompts_in_spend_logs)")
    key = INPUT_KEYS.get(kind, "messages")
    if isinstance(texts, str) and key == "messages":
        texts = [{"role": "user", "content": texts}]
    parameters = as_json(fields.get("model_parameters"))
    if not isinstance(parameters, dict):
        parameters = {}
    model = fields.get("model_group") or fields.get("model")
    return {**parameters, "model": model, key: texts}


def _error_of(fields: Json) -> Json | None:
    """Returns the error of a failed call, with its status as `code`; None for others."""
    if fields.get("status") != "failure":
        return None
    details = fields.get("error_information")
    if not isinstance(details, dict):
        details = {}
    status = error_status(details.get("error_code"))
    message = details.get("error_message") or fields.get("error_str") or ""
    return {"message": str(message), "type": details.get("error_class"), "code": status}
