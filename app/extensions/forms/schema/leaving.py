"""Ends the work for clients that have left."""

from app.core.base.callers import current_caller
from app.core.base.overload import ClientLeftError


def check_client() -> None:
    """Raises ClientLeftError if the client of this greenlet's request has left."""
    caller = current_caller.get()
    connection = None if caller is None else caller.connection
    if connection is not None and connection.is_closed_by_client:
        raise ClientLeftError
