"""All facts of a version."""

from collections.abc import Callable, Iterable, Iterator

from scripts.version_diff.architectures import architecture_facts, suffix_facts
from scripts.version_diff.code import code_facts, error_facts
from scripts.version_diff.environment import variable_facts
from scripts.version_diff.fact import Fact, by_key
from scripts.version_diff.fields import event_facts, field_facts
from scripts.version_diff.metrics import metric_facts
from scripts.version_diff.options import option_facts
from scripts.version_diff.package import Package
from scripts.version_diff.registries import parser_facts, quantization_facts
from scripts.version_diff.routes import route_facts

READERS: tuple[Callable[[Package], Iterator[Fact]], ...] = (
    option_facts,
    variable_facts,
    field_facts,
    route_facts,
    metric_facts,
    event_facts,
    parser_facts,
    quantization_facts,
    architecture_facts,
    suffix_facts,
    error_facts,
    code_facts,
)


def read_facts(
    package: Package, readers: Iterable[Callable[[Package], Iterator[Fact]]] = READERS
) -> list[Fact]:
    """Returns the facts of a version, each once."""
    facts: list[Fact] = []
    for reader in readers:
        facts += reader(package)
    return list(by_key(facts).values())
