"""Keep long library calls away from the event loop."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import gevent
from gevent import monkey

P = ParamSpec("P")
T = TypeVar("T")


def call_off_hub(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a native thread while other greenlets run; a plain call where gevent is not at work.

    Only worth it for functions that release the GIL, such as `encode_batch` (`encode` does not).
    """
    if not monkey.is_module_patched("socket"):
        return function(*args, **kwargs)
    result: T = gevent.get_hub().threadpool.apply(function, args, kwargs)
    return result
