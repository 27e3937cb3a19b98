"""The fast path: answers plain requests for generation from the hub, without Flask and WSGI environ.

Validating, building, rendering and counting are the routes' and the middleware's code, shared with the
general path. This package recognises plain requests, and leaves doubtful requests to the general path before
anything is counted.
"""
