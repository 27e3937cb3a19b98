"""The documents:

every route has an example, tables are whole, what docs/seeds.md promises is there.
"""

import re
import shlex
from pathlib import Path

import pytest

from app.core.settings import settings_table
from scripts.surface import EVERY_FEATURE, is_flag
from tests.application import app_of
from tests.running_server import ROOT
from vllm_facts.checks import SUPERVISOR_PORT

OTHER_NAMES = {
    *("/stop_profile", "/inference/v1/abort_requests", "/reset_mm_cache", "/reset_encoder_cache"),
    *("/ping", "/health/ready"),
}
"""Named beside another route that does the same and has the example."""


def routes() -> set[str]:
    paths: set[str] = set()
    servers = [(*EVERY_FEATURE, f"--task={task}") for task in ("generate", "pooling")]
    for flags in (*servers, ("--dialect=sglang",)):
        app = app_of("--force-dummy-tokenizer", *filter(is_flag, flags))
        paths |= {rule.rule for rule in app.url_map.iter_rules()}
    return {re.sub(r"<(?:\w+:)?\w+>", "{id}", path) for path in paths}


@pytest.mark.grpc
@pytest.mark.tracing
def test_every_route_is_documented_and_has_an_example() -> None:
    documents, served = (
        "\n".join(page.read_text() for page in (ROOT / "docs").glob("*.md")),
        routes(),
    )
    assert {path for path in served if f"{path}`" not in documents} == set()
    examples = set(
        re.findall(r"curl\b[^\n`]*?localhost:8000(/[\w/{}.-]*)", documents.replace("\\\n", " "))
    )
    examples = {
        re.sub(r"/(?:resp_\w+|main\.js|17|sql|preemption)(?=$|/)", "/{id}", path)
        for path in examples
    }
    variants = {path.removeprefix("/v1").removeprefix("/v2") for path in examples}
    missing = {
        path for path in served - OTHER_NAMES if path not in examples and path not in variants
    }
    assert {
        path for path in missing if path.removeprefix("/v1").removeprefix("/v2") not in variants
    } == set()


PAGES = sorted(
    path for pattern in ("*.md", ".github/*.md", "docs/*.md") for path in ROOT.glob(pattern)
)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"(?:^\|.*\n?)+", re.MULTILINE)
RULER = re.compile(r"\|(?:\s*:?-+:?\s*\|)+")


def test_every_table_has_a_header_and_a_separator_row() -> None:
    """A blank line within a table would end it, and show its other rows as text."""
    for page in PAGES:
        for table in TABLE.findall(CODE.sub("", page.read_text("utf-8"))):
            ruler = table.splitlines()[1] if "\n" in table.strip() else ""
            assert RULER.fullmatch(ruler), (page.name, table[:200])


FENCE = re.compile(r"^ {0,4}```(\w*)[^\n]*\n(.*?)^ {0,4}```$", re.MULTILINE | re.DOTALL)
MAX_WORDS_BEFORE_EXAMPLE = 90
TABLES_OF_FACTS = {"benchmarks.md", "glossary.md", "limits.md"}
"""Pages without an example: nobody runs a word, a figure, or a difference."""
NO_OUTPUT_HERE = {"coding-agents.md", "llm.md", "tracing.md"}
"""Pages whose first output needs a coding agent, a model, or a collector of traces."""
GUIDES = sorted(
    page
    for page in (ROOT / "docs").glob("*.md")
    if not page.name.startswith("reference-") and page.name not in TABLES_OF_FACTS
)


def has_output(console: str) -> bool:
    """Returns whether a block of commands, with their continued lines, also has output."""
    command = ""
    for line in console.splitlines():
        if not command and not line.strip().startswith("$ "):
            return True
        command += line.strip() + "\n"
        try:
            shlex.split(command, comments=True)
        except ValueError:  # an open quote, or a backslash at the end
            continue
        if not command.endswith("\\\n"):
            command = ""
    return False


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_each_guide_begins_with_a_working_example_and_its_output(page: Path) -> None:
    text = page.read_text("utf-8")
    examples = list(FENCE.finditer(text))
    assert len(text[: examples[0].start()].split()) <= MAX_WORDS_BEFORE_EXAMPLE
    if examples[0][1] == "console" and page.name not in NO_OUTPUT_HERE:
        consoles = [body for language, body in FENCE.findall(text) if language == "console"]
        assert any(has_output(body) for body in consoles[:2]), consoles[:2]


def test_one_page_tells_how_to_install() -> None:
    """A release changes README, this page, and the CI job of `check`, which stands for itself."""
    own_package = re.compile(r"git clone|pip install '?(\./understudy|(vllm-)?understudy\b)")
    pages = {page.name for page in PAGES if own_package.search(page.read_text("utf-8"))}
    assert pages == {"README.md", "install.md", "check.md"}


def test_a_continued_command_is_not_output() -> None:
    assert not has_output("$ curl a \\\n    --json '{\n  }'\n$ curl b  # it's c\n")
    assert has_output("$ curl a \\\n    --json '{}'\nok\n")


SEEDS = (ROOT / "docs" / "seeds.md").read_text("utf-8")
ROWS = [
    re.split(r" ?(?<!\\)\| ?", line)[1:-1] for line in SEEDS.splitlines() if line.startswith("| ")
]


def test_every_comparison_row_describes_this_project() -> None:
    assert len(ROWS) > 20 and {len(row) for row in ROWS} == {3}
    assert all(here_text for _, here_text, _ in ROWS)


PORT_ROW = re.compile(r"^\| (none|\d+) \(`([\w-]+)`\)", re.MULTILINE)


def test_table_of_ports_has_the_default_of_each_port_setting() -> None:
    rows = dict(
        (name, port) for port, name in PORT_ROW.findall((ROOT / "docs/access.md").read_text())
    )
    settings = settings_table().by_name
    for name, port in rows.items():
        if name not in settings:  # of a deleted extension
            continue
        default = str(settings[name].default or "none").rpartition(":")[2]
        assert port == default or name == "data-parallel-supervisor-port", name
    assert rows["data-parallel-supervisor-port"] == str(SUPERVISOR_PORT) and len(rows) == 7


README = (ROOT / "README.md").read_text()
README_COMMANDS = re.findall(r"(?m)^\$ (.+?)(?: {2,}#|$)", README)
FIRST_SCREEN = README[: README.index("Choose the job")]
JOBS = re.findall(r"(?m)^## (?!All pages)(.+)$", (ROOT / "docs" / "index.md").read_text())
LINKS = {link.partition("#")[0] for link in re.findall(r"\]\(([^):]+)\)", README)}

LINK_TO_HEADING = re.compile(r"\]\(([\w./-]+\.md|)#([\w-]+)\)")


def test_readme_starts_with_the_project_purpose_and_a_quick_start() -> None:
    assert {"mock", "simulator", "vLLM"} <= {*re.findall(r"\w+", FIRST_SCREEN.splitlines()[2])}
    for text in (
        "Who it is for",
        "Who it is not for",
        "git clone",
        "make run",
        "pip install .",
        "docker build",
    ):
        assert text in FIRST_SCREEN
    assert len(FIRST_SCREEN.splitlines()) < 45


def test_readme_starts_with_commands_for_the_server_and_the_tests() -> None:
    assert README_COMMANDS[:2] == ["make run", "make test-all"]


def test_readme_links_point_to_existing_files() -> None:
    assert [link for link in LINKS if not (ROOT / link).exists()] == []


def test_readme_fits_on_two_screens() -> None:
    assert len(README.split()) <= 700
    assert len(README.splitlines()) <= 100


def test_documentation_links_point_to_existing_headings() -> None:
    """`make docs` looks at those within docs/ once more, as the site has them."""
    pages = [*PAGES, ROOT / "clients/js/README.md", *(ROOT / "tests").glob("**/README.md")]
    links = [(page, *link) for page in pages for link in LINK_TO_HEADING.findall(page.read_text())]
    missing = [
        (page.name, file, anchor)
        for page, file, anchor in links
        if anchor not in anchors((page.parent / file if file else page).read_text())
    ]
    assert missing == [] and len(links) > 50


def anchors(text: str) -> set[str]:
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", CODE.sub("", text))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_documentation_site_lists_every_page_once() -> None:
    listed = re.findall(r"(?m)^ +- (?:[\w ]+: )?([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_readme_lists_the_five_jobs_of_the_start_page() -> None:
    linked = re.findall(r"\[([\w ]+)\]\(docs/index\.md#([\w-]+)\)", README)
    assert [job for job, _ in linked] == JOBS and len(JOBS) == 5
    assert [anchor for _, anchor in linked] == [job.lower().replace(" ", "-") for job in JOBS]
