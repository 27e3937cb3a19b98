"""The fields of an error's body, in the forms of vLLM, OpenAI, Anthropic and FastAPI."""

from __future__ import annotations

from collections.abc import Mapping

from config.untrusted import UntrustedDataError, decode_untrusted


def error_fields(body: object) -> Mapping[str, object]:
    """Returns the fields of `error` in an error's body, or else those of the body.

    A text in `error` or `detail` becomes `message`. Returns no fields for a body of another form.
    """
    if not isinstance(body, bytes):
        return {}
    try:
        content = decode_untrusted(body)
    except UntrustedDataError:
        return {}
    if not isinstance(content, dict):
        return {}
    error = content.get("error") or content.get("detail")
    if isinstance(error, str):
        return {"message": error}
    if isinstance(error, dict):
        return error
    return content


def error_message(body: object) -> str:
    """Returns the message in an error's body; empty for a body without one."""
    message = error_fields(body).get("message")
    if isinstance(message, str):
        return message
    return ""
