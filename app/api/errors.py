"""Errors as clients of vLLM know them, written in one place."""

from __future__ import annotations

import logging

from flask import Flask, request
from flask.globals import request_ctx
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from app.http.errors import ApiError, internal, not_found
from app.http.response import Reply, json_reply
from app.lora.registry import AdapterError, AdapterNotFound
from app.tokenization.base import TokenizerInputError, TokenizerServiceError

log = logging.getLogger(__name__)


def init_errors(app: Flask) -> None:
    """Have every error of `app` leave in vLLM's form."""
    app.register_error_handler(ApiError, _api_error)
    app.register_error_handler(AdapterError, _adapter_error)
    app.register_error_handler(TokenizerInputError, _input_error)
    app.register_error_handler(TokenizerServiceError, _service_error)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected)


def forget_frames(error: BaseException | None) -> None:
    """Let go of the frames that `error` came through.

    Frames that know their error, by a request that holds it, for one, are cyclic garbage, and a server
    that fails on purpose makes much of it.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _api_error(error: ApiError) -> Reply:
    forget_frames(error)
    return json_reply(error.body(), error.status, error.headers)


def _adapter_error(error: AdapterError) -> Reply:
    forget_frames(error)
    if isinstance(error, AdapterNotFound):
        return _api_error(not_found(str(error)))
    return _api_error(ApiError(400, "InvalidUserInput", str(error)))


def _input_error(error: TokenizerInputError) -> Reply:
    return _api_error(ApiError(400, "BadRequestError", str(error)))


def _service_error(error: TokenizerServiceError) -> Reply:
    log.error("the tokenizer service failed: %s", error)
    return _api_error(internal(str(error)))


def _http_error(error: HTTPException) -> Reply:
    """What routing refuses keeps the web framework's own body (vllm-api.md section 4)."""
    forget_frames(error)
    if isinstance(error, NotFound) and (moved := _without_slash()):
        return Reply(b"", 307, {"Location": moved})
    reply = json_reply({"detail": error.name}, error.code or 500)
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        reply.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    if request.method == "HEAD":
        reply.response = ()  # all but the body, whose length is still told
    return reply


def _without_slash() -> str | None:
    """Where a path with a slash too many should have gone; None when there is no such route."""
    path = request.path.rstrip("/")
    adapter = request_ctx.url_adapter
    if not path or path == request.path or adapter is None:
        return None
    try:
        adapter.match(path, method=request.method)
    except MethodNotAllowed:
        pass
    except HTTPException:
        return None
    query = request.query_string.decode("latin-1")
    return request.host_url.rstrip("/") + path + (f"?{query}" if query else "")


def _unexpected(error: Exception) -> Reply:
    log.exception("a request failed unexpectedly")
    forget_frames(error)
    return _api_error(internal("The server failed to handle the request."))
