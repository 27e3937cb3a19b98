"""The contract of extensions: what is enabled, and which modules may import which."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.built_in import (
    PACKAGE,
    enabled_extensions,
    extension_names,
    import_extension,
    present_extensions,
)
from app.core.settings import load
from tests.running_server import ROOT
from tests.syntax import statements, tree_of


def usable_extensions() -> list[str]:
    """Returns the present extensions whose requirements are present, too."""
    return [extension.__module__.rpartition(".")[2] for extension in present_extensions()]


def imported_modules(file: Path) -> Iterator[str]:
    for node in statements(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_that_mention(folder: Path, others_than: str = "") -> Iterator[Path]:
    """Yields the files with the name of an extension: parsing all files takes a second."""
    for file in folder.rglob("*.py"):
        names = re.findall(r"\bextensions(?:\.(\w+)| import )", file.read_text("utf-8"))
        if any(name != others_than for name in names):
            yield file


def imported_extensions(folder: Path) -> set[str]:
    """Returns the names of the extensions that `folder` imports, perhaps without its own name."""
    names = set()
    for file in files_that_mention(folder, others_than=folder.name):
        for module in imported_modules(file):
            if module.startswith(f"{PACKAGE}."):
                names.add(module.split(".")[2])
    return names


def test_every_package_of_extensions_declares_one() -> None:
    packages = {file.parent.name for file in (ROOT / "app" / "extensions").glob("*/__init__.py")}
    assert packages == set(extension_names())
    assert len(packages) > 10


def test_extension_follows_those_that_it_requires_and_those_with_a_lower_order() -> None:
    extensions = present_extensions()
    places = {extension.name: place for place, extension in enumerate(extensions)}
    for extension in extensions:
        for name in extension.requires:
            assert places[name] < places[extension.name], (name, extension.name)
    leaves = [extension for extension in extensions if not extension.requires]
    required = {name for extension in extensions for name in extension.requires}
    free = [extension for extension in leaves if extension.name not in required]
    assert free == sorted(free, key=lambda extension: (extension.order, extension.name))


def test_core_imports_no_app_extension() -> None:
    assert imported_extensions(ROOT / "app" / "core") == set()


@pytest.mark.parametrize("name", usable_extensions())
def test_app_extension_imports_only_the_extensions_that_it_requires(name: str) -> None:
    extension = import_extension(name)
    assert extension.name == name, "the name must be that of the folder"
    imported = imported_extensions(ROOT / "app" / "extensions" / name)
    assert imported - {name} <= set(extension.requires)


@pytest.mark.parametrize("folder", ["core", "config", "surface", "conformance", "servers"])
def test_tests_outside_extension_folders_import_no_app_extension(folder: str) -> None:
    """The tests of an extension are deleted with it."""
    files = files_that_mention(ROOT / "tests" / folder)
    assert [file for file in files if any(map(is_of_extension, imported_modules(file)))] == []


def is_of_extension(module: str) -> bool:
    return module.startswith((f"{PACKAGE}.", "tests.extensions."))


TABLE_ROW = re.compile(r"^\| `(\w+)` \| .*? \| ([^|]*) \| ([^|]*) \| [^|]* \|$", re.MULTILINE)


def documented_extensions() -> list[tuple[str, tuple[str, ...], bool]]:
    """Returns name, requirements, and whether it is always on, of each row of the reference."""
    page = (ROOT / "docs" / "reference-extensions.md").read_text("utf-8")
    return [
        (name, tuple(re.findall(r"`(\w+)`", requires)), when == "always")
        for name, requires, when in TABLE_ROW.findall(page)
    ]


def test_documentation_page_lists_every_app_extension() -> None:
    documented = documented_extensions()
    usable = usable_extensions()
    assert [name for name, _, _ in documented if name in usable] == usable, (
        "docs/reference-extensions.md: run python -m scripts.reference_pages"
    )
    requirements = {name: requires for name, requires, _ in documented}
    for extension in present_extensions():
        assert requirements[extension.name] == tuple(extension.requires), extension.name


def test_app_extensions_documented_as_always_on_are_enabled_by_default() -> None:
    enabled = {extension.name for extension in enabled_extensions(load((), {}))}
    usable = usable_extensions()
    always = {name for name, _, is_always_on in documented_extensions() if is_always_on}
    assert len(always) > 10
    assert always.intersection(usable) <= enabled
