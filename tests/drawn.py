"""The examples of hostile and foreign files that a run tries.

The readers of such files have thousands of examples, and none of them depends on another. A run
tries a quarter, which the commit draws, so that it can be repeated. `pytest --all-examples` tries
all of them, as the weekly run does. A tree without a commit, such as an archive, has no draw, and
tries all of them, too.
"""

import os
import subprocess
from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import Any, TypeVar

import hypothesis

from tests.running_server import ROOT

DRAW = "UNDERSTUDY_TESTS_DRAW"
"""Variable of the environment: the text that seeds the draw, or ALL."""
ALL = "all"
SHARE = 4
"""A run tries one of so many examples."""

Example = TypeVar("Example")
Property = TypeVar("Property", bound=Callable[..., None])


def prepare_draw(all_examples: bool) -> None:
    """Sets the variable, for the modules that are imported next and for all processes.

    A variable that is already set counts, unless there is to be no draw.
    """
    if all_examples:
        os.environ[DRAW] = ALL
    elif not os.environ.get(DRAW):
        os.environ[DRAW] = commit_of_checkout() or ALL


def commit_of_checkout() -> str:
    """Returns the commit that is checked out; an empty text if git knows none."""
    # Tests run as root in the checkout of somebody else, too.
    command = ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def tries_all() -> bool:
    """Returns whether this run tries all examples."""
    return os.environ.get(DRAW, ALL) == ALL


def drawn(examples: Iterable[Example]) -> list[Example]:
    """Returns the examples that this run tries, at least one of them, in their order.

    Each test draws others. Outside of a test, such as for `parametrize`, the draw depends only on
    the commit and on the number of examples.
    """
    examples = list(examples)
    if tries_all():
        return examples
    count = -(-len(examples) // SHARE)
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    chance = Random(f"{os.environ[DRAW]} {test}")
    numbers = sorted(chance.sample(range(len(examples)), count))
    return [examples[number] for number in numbers]


def drawn_examples(
    count: int, suppressed: Collection[hypothesis.HealthCheck] = ()
) -> Callable[[Property], Property]:
    """Returns the decorator of a property that Hypothesis tries with `count` examples.

    A draw has a quarter of them, and the same ones for the same commit.
    """

    def decorate(test: Property) -> Property:
        options: dict[str, Any] = {"deadline": None}
        if suppressed:
            options["suppress_health_check"] = list(suppressed)
        if tries_all():
            return hypothesis.settings(max_examples=count, **options)(test)
        chance = Random(f"{os.environ[DRAW]} {test.__qualname__}")
        limited = hypothesis.settings(max_examples=-(-count // SHARE), **options)(test)
        return hypothesis.seed(chance.getrandbits(64))(limited)

    return decorate
