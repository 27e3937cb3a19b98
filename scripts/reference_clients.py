"""The generated pages of the Python client and the JavaScript client."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from scripts.generated_page import Page, Section, code, one_line

ROOT = Path(__file__).resolve().parent.parent
PYTHON = {
    "running_server": ROOT / "vllm_understudy/running.py",
    "Server": ROOT / "vllm_understudy/control.py",
    "RuleSetter": ROOT / "vllm_understudy/control.py",
    "Scope": ROOT / "vllm_understudy/control.py",
    "Reply": ROOT / "vllm_understudy/control.py",
    "Verdict": ROOT / "vllm_understudy/control.py",
    "ControlError": ROOT / "vllm_understudy/rules.py",
    "JournalEntry": ROOT / "vllm_understudy/journal.py",
    "running_mcp_server": ROOT / "vllm_understudy/mcp_control.py",
    "McpServer": ROOT / "vllm_understudy/mcp_control.py",
    "ToolCall": ROOT / "vllm_understudy/mcp_control.py",
}
FIXTURES = ROOT / "vllm_understudy/pytest_plugin.py"
TYPES = ROOT / "clients/js/index.d.ts"
COLUMNS = ("name", "meaning")
DECLARATION = re.compile(r"^export (interface|class|function) (\w+)(.*)$")
COMMENT = re.compile(r"/\*\* (.*?) \*/", re.DOTALL)
MEMBER_LINES = re.compile(r"^(  \w+(?:<\w+>)?)\(\n((?:    .*\n)+?)  \)", re.M)
"""A member whose parameters are on lines of their own."""
MEMBER = re.compile(r"^  [\w\[].*;$")


def python_page() -> Page:
    """Returns the page of the package vllm_understudy."""
    sections = []
    for name, path in PYTHON.items():
        [node] = [node for node in _definitions(path) if node.name == name]
        rows = [(code(_signature(node)), _doc(node))]
        if isinstance(node, ast.ClassDef):
            rows += _members(node)
        sections.append(Section(name, COLUMNS, rows))
    fixtures = [
        (code(node.name), _doc(node))
        for node in _definitions(FIXTURES)
        if any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    sections.append(Section("Fixtures of pytest", COLUMNS, fixtures))
    return Page("reference-python.md", "Python client", sections)


def javascript_page() -> Page:
    """Returns the page of the npm package."""
    sections: list[Section] = []
    functions: list[tuple[str, str]] = []
    rows: list[tuple[str, str]] = []
    comment = ""
    for line in _declarations(TYPES.read_text("utf-8")):
        documented = COMMENT.fullmatch(line.strip())
        declared = DECLARATION.match(line)
        member = MEMBER.match(line)
        if documented:
            comment = one_line(documented[1])
            continue
        if declared and declared[1] == "function":
            signature = f"{declared[2]}{declared[3].partition('):')[0]})"
            functions.append((code(signature), comment))
        elif declared:
            rows = []
            if comment:
                rows.append((code(declared[2]), comment))
            sections.append(Section(declared[2], COLUMNS, rows))
        elif member:
            rows.append((code(line.strip().rstrip(";")), comment))
        comment = ""
    return Page(
        "reference-javascript.md",
        "JavaScript client",
        [Section("Functions", COLUMNS, functions), *sections],
    )


def _declarations(text: str) -> Iterator[str]:
    """Yields the lines of a file of types; a comment or a member of several lines is one line."""
    text = re.sub(r"\n +\* ?", " ", text)
    text = MEMBER_LINES.sub(_joined, text)
    yield from text.splitlines()


def _joined(member: re.Match[str]) -> str:
    """Returns a member with its parameters on one line."""
    parameters = " ".join(line.strip() for line in member[2].splitlines())
    return f"{member[1]}({parameters.rstrip(',')})"


def _definitions(path: Path) -> list[ast.FunctionDef | ast.ClassDef]:
    body = ast.parse(path.read_text("utf-8")).body
    return [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def _members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yields a row for each public field, property and method."""
    for position, member in enumerate(node.body):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            yield (code(member.target.id), _field_doc(node, position))
        elif isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            yield (code(_signature(member)), _doc(member))


def _field_doc(node: ast.ClassDef, position: int) -> str:
    if position + 1 < len(node.body):
        doc = node.body[position + 1]
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
            return one_line(str(doc.value.value))
    return ""


def _signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Returns the name with parameters and defaults, without types."""
    if isinstance(node, ast.ClassDef):
        return node.name
    if any(ast.unparse(decorator) == "property" for decorator in node.decorator_list):
        return node.name
    parameters = ast.unparse(_without_types(node.args))
    return f"{node.name}({parameters.removeprefix('self').removeprefix(', ')})"


def _without_types(arguments: ast.arguments) -> ast.arguments:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in (*named, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    return arguments


def _doc(node: ast.FunctionDef | ast.ClassDef) -> str:
    return one_line(ast.get_docstring(node) or "")
