"""Drives a scheduler through a load: when requests arrive, and when steps begin and end.

Both schedulers are driven by the same code, so that only they can differ.
"""

from collections import deque
from time import thread_time
from typing import Protocol

from fidelity.judge_steps.load import Input, Load, Plan, Step, Steps

MAX_STEPS = 20_000
"""No load needs more steps."""


class Engine(Protocol):
    """A scheduler with its KV cache, without a model."""

    in_flight: int
    """Number of steps under way."""

    @property
    def unfinished(self) -> int:
        """Number of requests that are waiting or running."""

    def add(self, plan: Plan) -> None:
        """Queues a request."""

    def abort(self, name: str) -> None:
        """Removes a request, unless it is over."""

    def command(self, name: str, adapter: int) -> None:
        """Runs one of `COMMANDS`."""

    def schedule(self) -> Step | None:
        """Makes a step; returns None if there is nothing to compute."""

    @property
    def fetching(self) -> bool:
        """True while a request waits for the cache of another engine."""

    def complete(self) -> None:
        """Ends the oldest step under way, and the transfers that are due then."""

    def wait(self) -> None:
        """Ends a step without tokens, in which only transfers go on."""

    def take_rest(self) -> Step:
        """Returns what happened since the latest step."""


def drive(load: Load, engine: Engine) -> Steps:
    """Serves a load; steps overlap as in vLLM's engine. An exception is the error of the steps.

    Inputs are due after a number of steps. The next one is also due if no step can be made before.
    """
    start_s = thread_time()
    steps: list[Step] = []
    error = ""
    try:
        _serve(load, engine, steps)
    except Exception as exception:
        error = f"{type(exception).__name__}: {exception}"
    if not error and engine.unfinished:
        error = f"{engine.unfinished} requests are left"
    steps.append(engine.take_rest())
    for step in steps:
        step.events.sort(key=str)
    return Steps(steps, thread_time() - start_s, error)


def _serve(load: Load, engine: Engine, steps: list[Step]) -> None:
    """Serves a load, and adds its steps to a list.

    Raises:
        RuntimeError: There are too many steps; a scheduler may raise other exceptions.
    """
    inputs = _served(load)
    is_stalled = False
    while inputs or not is_stalled:
        while inputs and (inputs[0].step <= len(steps) or is_stalled):
            _deliver(inputs.popleft(), engine)
            is_stalled = False
        step = engine.schedule()
        if step is not None:
            steps.append(step)
            if len(steps) > MAX_STEPS:
                raise RuntimeError(f"more than {MAX_STEPS} steps")
            if engine.in_flight < load.depth:
                continue
        if engine.in_flight:
            engine.complete()
        elif engine.fetching:
            engine.wait()
        else:
            is_stalled = True


def _served(load: Load) -> deque[Plan | Input]:
    """Returns requests and inputs by the steps after which they are due, requests first.

    A server rejects requests for adapters that are not loaded when they arrive.
    """
    inputs: list[Plan | Input] = [*load.plans, *load.inputs]
    served: deque[Plan | Input] = deque()
    unloaded: set[int] = set()
    for item in sorted(inputs, key=lambda item: item.step):
        if isinstance(item, Plan):
            if item.adapter in unloaded:
                continue
        elif item.command == "unload":
            unloaded.add(item.adapter)
        elif item.command == "load":
            unloaded.discard(item.adapter)
        served.append(item)
    return served


def _deliver(item: Plan | Input, engine: Engine) -> None:
    if isinstance(item, Plan):
        engine.add(item)
    elif item.abort:
        engine.abort(item.abort)
    else:
        engine.command(item.command, item.adapter)
