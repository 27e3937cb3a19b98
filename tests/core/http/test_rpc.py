"""Status codes of gRPC for the errors of HTTP handlers."""

import pytest

from app.core.server.http.errors import ApiError
from app.core.server.http.rpc import RpcOutcome


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, 3),
        (401, 16),
        (403, 7),
        (404, 5),
        (409, 10),
        (412, 9),
        (413, 8),
        (418, 2),
        (429, 8),
        (499, 1),
        (500, 13),
        (501, 12),
        (503, 14),
        (504, 4),
    ],
)
def test_each_http_status_is_mapped_to_its_grpc_code(status: int, code: int) -> None:
    outcome = RpcOutcome()
    outcome.fail(ApiError(status, "AnyError", "The reason."))
    assert (int(outcome.code), outcome.message) == (code, "The reason.")
