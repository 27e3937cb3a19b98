"""The house of docs/architecture.md:

files that import each other in no circle, none of them too long.
"""

import ast
import tokenize
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_TOKENS = 5_500
"""Tokens of a file, without comments, docstrings counting as one. Lines would reward packing."""
LAYOUT = (
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_of(path): path
    for folder in ("app", "config", "vllm_understudy")
    for path in (ROOT / folder).rglob("*.py")
}


@cache
def imported(path: Path) -> tuple[str, ...]:
    """The modules of ours that a file names in its imports, also for types alone."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in names if name in MODULES]
            yield from modules
            if len(modules) < len(names) and node.module in MODULES:
                yield node.module


UNDER = ("base", "text", "config")
"""What every system may import."""
SYSTEMS = {
    "config": (),
    "base": ("config",),
    "text": ("base", "config"),
    "engine": UNDER,
    "llm": ("engine", *UNDER),
    "kvindex": ("engine", *UNDER),
    "serving": ("kvindex", "engine", *UNDER),
    "core": ("serving", "engine", *UNDER),
    "extensions": (
        *("core", "console", "lab", "plugins"),
        *("serving", "kvindex", "llm", "engine", *UNDER),
    ),
    "console": ("core", "extensions", "serving", "engine", *UNDER),
    "lab": ("console", "serving", "engine", *UNDER),
    "plugins": ("core", "lab", "serving", "engine", *UNDER),
    "cli": ("core", "serving", *UNDER),
    "entrypoint": ("cli",),
    "__main__": ("cli",),
    "app": ("core", "serving", "config"),
}
"""The drawing of docs/architecture.md: what each system may import."""


def system_of(module: str) -> str:
    names = module.split(".")
    return names[1] if names[0] == "app" and len(names) > 1 else names[0]


def test_a_system_imports_only_those_below_it() -> None:
    beyond = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        if not module.startswith("vllm_understudy")
        for other in imported(path)
        if system_of(other) not in (system_of(module), *SYSTEMS[system_of(module)])
    ]
    assert beyond == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Whatever does, at whatever place, is one thing in two files."""
    graph = {module: set(imported(path)) - {module} for module, path in MODULES.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES) > 200


def token_count(path: Path) -> int:
    with path.open(encoding="utf-8") as file:
        return sum(token.type not in LAYOUT for token in tokenize.generate_tokens(file.readline))


def test_no_file_is_too_large_to_read_in_one_sitting() -> None:
    sizes = {module: token_count(path) for module, path in MODULES.items()}
    assert {module: size for module, size in sizes.items() if size > MAX_TOKENS} == {}
