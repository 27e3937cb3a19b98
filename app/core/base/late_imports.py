"""Imports of modules at their first use."""

from importlib import import_module


def import_modules(*names: str) -> None:
    """Imports modules one after another, and pauses in between.

    The order should be that of their dependencies, so that each takes the event loop for less than
    20 ms. A native thread must not import them instead: under gevent the locks of Python's import
    system belong to greenlets, and two threads that import the same module may wait for each other
    forever.
    """
    from app.core.base.clock.pause import pause_if_possible  # commands do not need gevent

    for name in names:
        pause_if_possible()  # also between the work of the request and the first module
        import_module(name)
    pause_if_possible()
