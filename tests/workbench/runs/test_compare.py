"""`simulate --compare`:

two runs in one table and one page, what it says of them, and of bad input.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from app.extensions.console.compare import RunFigures, compare
from workbench.runs.simulate import run

FLEET = [
    "--rate",
    "20",
    "--seconds",
    "10",
    "--pods",
    "4",
    "--input-tokens",
    "200",
    "--output-tokens",
    "32",
]
SHARED = [*FLEET, "--prefix-groups", "24", "--prefix-tokens", "3000"]
BASE = {
    **{
        f"{time} {part}": 100.0
        for time in ("TTFT", "TPOT", "E2E")
        for part in ("p50", "p90", "p99")
    },
    **{
        "requests": 200.0,
        "prompt tokens": 1e5,
        "failed": 0.0,
        "output tokens/s": 1000.0,
        "GPU-hours": 0.5,
    },
}


def files(folder: Path, a: str, b: str) -> list[str]:
    paths = folder / "random.yaml", folder / "prefix.yaml"
    for path, text in zip(paths, (a, b), strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def sentence(**changed: float) -> tuple[str | None, str]:
    """What is said of a run `b` that differs from `a` in these figures; `_` stands for a space."""
    changes = {name.replace("_", " "): value for name, value in changed.items()}
    comparison = compare(RunFigures("a", BASE), RunFigures("b", BASE | changes))
    return comparison.better, comparison.sentence


def figures(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run([*argv, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 1) -> str:
    assert run(argv) == status
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


def test_comparison_explains_why_the_router_with_cache_hits_is_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both runs are those that `simulate` makes alone of the same options."""
    flags = [*SHARED, "--compare", *files(tmp_path, "policy: random", "policy: prefix-aware")]
    assert run(flags) == 0
    first, *heads = capsys.readouterr().out.splitlines()
    comparison = figures(capsys, *flags)
    assert first == comparison["sentence"] and comparison["better"] == "prefix"
    assert heads[0].startswith("random: ") and heads[1].endswith("; 4 pods, prefix-aware")
    random, prefix = (
        figures(capsys, *SHARED, "--policy", name) for name in ("random", "prefix-aware")
    )
    assert comparison["runs"] == {"random": random, "prefix": prefix}
    shares = [
        f"{100 * summary['cached_tokens'] / summary['input_tokens']:.1f} %"
        for summary in (prefix, random)
    ]
    because = (
        f"because {shares[0]} of its prompt tokens were found in a cache instead of {shares[1]}"
    )
    assert first.startswith("prefix is better: TTFT p99 ") and f", {because} and " in first
    rows = {line.split("|")[1].strip(): line for line in heads if line.startswith("|")}
    tpot = [f"{summary['tpot_s']['p50'] * 1000:.1f} ms" for summary in (random, prefix)]
    assert [cell.strip() for cell in rows["TPOT p50"].split("|")[2:4]] == tpot


def test_comparison_file_sets_the_simulation_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "rate: 5\nseconds: 4\nenable-prefix-caching: {}\ngoodput: ['ttft:500', 'tpot:50']\npods: 2\n"
    comparison = figures(
        capsys, "--compare", *files(tmp_path, options.format("true"), options.format("false"))
    )
    assert comparison["better"] is None and comparison["sentence"].startswith("Neither is better: ")
    for summary in comparison["runs"].values():
        assert summary["goodput"]["requests"] == summary["requests"]


def test_files_with_equal_names_are_labeled_by_their_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").mkdir()
    paths = [tmp_path / "a.yaml", tmp_path / "old" / "a.yaml"]
    for path in paths:
        path.write_text("")
    comparison = figures(capsys, *FLEET, "--compare", *map(str, paths))
    assert list(comparison["runs"]) == list(map(str, paths))


def test_comparison_sentence_states_the_better_run_and_the_differences() -> None:
    assert sentence() == (None, "Neither is better: no figure that decides differs by 5 %.")
    assert sentence(TTFT_p99=103.0)[0] is None
    assert sentence(TTFT_p99=25.0) == (
        "b",
        "b is better: TTFT p99 25.0 ms against 100 ms (75 % less); these figures do not show why.",
    )
    better, text = sentence(TTFT_p99=25.0, TPOT_p99=120.0)
    assert better == "b" and text.endswith("; but TPOT p99 120 ms against 100 ms (20 % more).")
    better, text = sentence(**{"TTFT_p99": 50.0, "GPU-hours": 1.0})
    assert better is None
    assert text == (
        "Neither is better in all: a has GPU-hours 0.50 against 1.00 (50 % less), "
        "b has TTFT p99 50.0 ms against 100 ms (50 % less)."
    )
    assert (
        sentence(failed=0.25)[1] == "a is better: failed 0.0 % against 25.0 % (25.0 points less)."
    )


def test_comparison_sentence_omits_figures_that_do_not_explain_the_result() -> None:
    """Fewer cached tokens and longer queues are no reasons for a better run."""
    a = RunFigures("a", BASE | {"prompt tokens cached": 0.6, "mean wait in the queue": 1.0})
    b = RunFigures(
        "b", BASE | {"prompt tokens cached": 0.1, "mean wait in the queue": 50.0, "E2E p99": 50.0}
    )
    assert compare(a, b).sentence.endswith("; these figures do not show why.")


def test_p99_is_ignored_in_a_comparison_of_few_requests() -> None:
    assert sentence(TTFT_p99=10.0, requests=50.0)[1].startswith("Neither is better")


def test_comparison_sentence_warns_that_the_loads_differ() -> None:
    """Latencies of twice the load are compared, with a warning."""
    assert sentence(requests=400.0)[1].endswith("differs by 5 %; but the loads differ in requests.")
    larger_load = {"requests": 400.0, "output tokens/s": 2000.0, "GPU-hours": 1.0}
    assert sentence(**larger_load)[0] is None and sentence(**{"output tokens/s": 2000.0})[0] == "b"
    assert sentence(TTFT_p99=25.0, prompt_tokens=9e5)[1].endswith(
        "but the loads differ in prompt tokens."
    )


def test_runs_without_completed_requests_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="^idle has no finished requests to compare$"):
        compare(RunFigures("a", BASE), RunFigures("idle", {"requests": 3.0}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("polcy: random", "prefix.yaml: unknown flag --polcy; did you mean --policy?"),
        ("policy: fastest", "prefix.yaml: argument --policy: invalid choice: 'fastest'"),
        ("policy: [random", "prefix.yaml cannot be parsed: line 1: "),
        ("[1, 2]", "prefix.yaml must map options to values"),
        ("policy:", "prefix.yaml: policy must be a value or a list of values"),
        ("pods: {a: 1}", "prefix.yaml: pods must be a value or a list of values"),
        ("help: true", "prefix.yaml: help applies to the whole comparison, not to a single run"),
        ("html: x.html", "prefix.yaml: html applies to the whole comparison, not to a single run"),
        (
            "trace: absent.csv",
            "prefix.yaml: --rate describes a generated load and cannot be combined with --trace",
        ),
        ("seed: 5", "--compare requires the same seed for both runs, not 1 and 5"),
        ("pods: yes", "prefix.yaml: argument --pods: expected one argument"),
    ],
)
def test_invalid_comparison_file_is_rejected_with_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    assert message in refusal(capsys, *FLEET, "--compare", *files(tmp_path, "", text))


def test_flags_of_a_single_run_are_rejected_in_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    compare_flags = ["--compare", *files(tmp_path, "", "")]
    for flag, value in (("--plot", "x.png"), ("--requests", "x.csv"), ("--sweep", "pods=1:2:1")):
        assert refusal(capsys, *FLEET, *compare_flags, flag, value, status=2) == (
            f"{flag} applies to a single run and cannot be used with --compare"
        )
    first_file = compare_flags[1]
    same_file = f"./{Path(first_file).name}"
    twice = refusal(capsys, *FLEET, "--compare", first_file, same_file, status=2)
    assert twice.endswith("random.yaml is specified twice")
    assert "is specified twice" in refusal(
        capsys, *FLEET, *compare_flags, "--html=prefix.yaml", status=2
    )
    assert "No such file" in refusal(capsys, *FLEET, "--compare", "absent.yaml", first_file)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["prefix.yaml", "random.yaml"]


def test_comparison_page_contains_each_compared_run(tmp_path: Path) -> None:
    (a := tmp_path / "<script>alert(1)<").mkdir()
    page = tmp_path / "both.html"
    paths = [tmp_path / "x.yaml", a / "x.yaml"]
    for path in paths:
        path.write_text("rate: 5\nseconds: 5")
    assert run(["--compare", *map(str, paths), "--html", str(page)]) == 0
    recording = page.read_text("utf-8").partition('id="recording">')[2].partition("</script>")[0]
    head, *lines = map(json.loads, recording.splitlines())
    assert [name for name, _ in head["runs"]] == list(map(str, paths))
    assert (
        sum(count for _, count in head["runs"]) == len(lines)
        and "names" in lines[head["runs"][0][1]]
    )
