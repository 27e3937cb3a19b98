"""The Python files of a version of vLLM, parsed and never run."""

import ast
import tarfile
import warnings
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

ROOT = "vllm"
"""The package, which a source distribution has in a folder with its name and version."""
ALL_NAMES = "*"
"""The name in `from x import *`."""
LEFT_OUT = ("vllm/third_party/", "vllm/benchmarks/", "vllm/vllm_flash_attn/")
"""Folders whose options and metrics are not those of a server."""


class Module:
    """A module: its tree, and what its names stand for."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # invalid escapes in old versions
            return ast.parse(self.text)

    @cached_property
    def names(self) -> dict[str, ast.AST]:
        """Statement or value of each global name: a class, function, import or expression.

        Where a name has several, as in `if TYPE_CHECKING`, the first one counts.
        """
        names: dict[str, ast.AST] = {}
        for statement in _statements(self.tree.body):
            for name, node in _bindings(statement):
                names.setdefault(name, node)
        return names

    @cached_property
    def star_imports(self) -> list[ast.ImportFrom]:
        """The statements `from x import *`, in their order."""
        return [
            statement
            for statement in _statements(self.tree.body)
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == ALL_NAMES
        ]

    def imported_module(self, node: ast.ImportFrom) -> str:
        """Returns the dotted name of the module that an import names."""
        if not node.level:
            return node.module or ""
        parts = PurePosixPath(self.path).with_suffix("").parts
        folder = parts[: len(parts) - node.level]
        return ".".join([*folder, *filter(None, [node.module])])


class Package:
    """The modules of a version of vLLM by path, such as `vllm/envs.py`."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._modules = {path: Module(path, text) for path, text in texts.items()}

    def module(self, path: str) -> Module | None:
        """Returns a module by its path; None if the version lacks it."""
        return self._modules.get(path)

    def module_named(self, name: str) -> Module | None:
        """Returns a module by its dotted name."""
        path = name.replace(".", "/")
        return self._modules.get(f"{path}.py") or self._modules.get(f"{path}/__init__.py")

    def modules(self, folder: str = "vllm/", text: str = "") -> Iterator[Module]:
        """Yields modules below a folder that contain a text, in order of their paths."""
        for path in sorted(self._modules):
            module = self._modules[path]
            if path.startswith(folder) and not path.startswith(LEFT_OUT) and text in module.text:
                yield module


def read_package(source: Path) -> Package:
    """Reads the Python files of vLLM from a folder, a wheel or a source distribution.

    Raises:
        FileNotFoundError: The source does not exist, or has no package `vllm`.
    """
    if source.is_dir():
        texts = _texts_in_folder(source)
    elif source.suffix == ".whl":
        texts = _texts_in_wheel(source)
    else:
        texts = _texts_in_archive(source)
    if not texts:
        raise FileNotFoundError(f"{source} contains no files of the package {ROOT}")
    return Package(texts)


def _texts_in_folder(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in (folder / ROOT).rglob("*.py")
    }


def _texts_in_wheel(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name).decode()
            for name in archive.namelist()
            if name.startswith(f"{ROOT}/") and name.endswith(".py")
        }


def _texts_in_archive(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            _, _, name = member.name.partition("/")
            if not name.startswith(f"{ROOT}/") or not name.endswith(".py"):
                continue
            file = archive.extractfile(member)
            if file is not None:
                texts[name] = file.read().decode()
    return texts


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields statements, and those in the branches of `if`, `try` and `with`."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _statements(statement.body + statement.orelse)
        elif isinstance(statement, ast.Try):
            yield from _statements(statement.body)
            for handler in statement.handlers:
                yield from _statements(handler.body)
        elif isinstance(statement, ast.With):
            yield from _statements(statement.body)


def _bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """Yields names that a statement binds, and what they stand for."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name, statement
    elif isinstance(statement, ast.ImportFrom | ast.Import):
        for alias in statement.names:
            if alias.name != ALL_NAMES:
                yield alias.asname or alias.name, statement
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        if statement.value is not None:
            yield statement.target.id, statement.value
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id, statement.value
