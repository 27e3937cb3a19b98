"""Keys of the WSGI environ that our worker and our application share."""

ARRIVAL = "understudy.arrival"
"""Monotonic seconds when the request reached the worker, or else the application."""
ENDED = "understudy.ended"
"""`JoinedResponse.ended` of the response: whoever writes a body past the server calls it at the end."""
REQUEST_ID = "understudy.request_id"
"""The id of the request; access lines take it from here, for they are written when the request is over."""
