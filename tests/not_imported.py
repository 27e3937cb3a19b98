"""What stands for test modules that cannot be imported, because a package is not here."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.needs import NEEDS


class NotImported(pytest.File):
    """One test, which is skipped for want of what `marker` names."""

    def __init__(self, *, marker: str, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        self.marker = marker

    def collect(self) -> Iterator[pytest.Item]:
        yield NotRun.from_parent(self, name="all")


class NotRun(pytest.Item):
    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        assert isinstance(self.parent, NotImported)
        self.add_marker(self.parent.marker)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name

    def runtest(self) -> None:
        raise AssertionError("it needs what is not here, so it is skipped")


MakeModule = Callable[[Path, pytest.Collector], pytest.Collector | None]


def skipped_without(marker: str) -> MakeModule:
    """The hook `pytest_pycollect_makemodule` of a folder whose modules import what `marker` names."""
    [need] = [need for need in NEEDS if need.marker == marker]

    def pytest_pycollect_makemodule(
        module_path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        if need.is_here:
            return None
        return NotImported.from_parent(parent, path=module_path, marker=marker)

    return pytest_pycollect_makemodule
