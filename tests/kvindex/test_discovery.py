"""Which models a directory holds tokenizers of."""

import os
from pathlib import Path

from app.kvindex.library import Discovery, discover


def put(directory: Path, *folders: str) -> None:
    for folder in folders:
        (directory / folder).mkdir(parents=True, exist_ok=True)
        (directory / folder / "tokenizer.json").write_text("{}")


def test_tokenizers_are_discovered_under_the_names_of_their_models(tmp_path: Path) -> None:
    cached = "hub/models--Qwen--Qwen3-0.6B/snapshots/0123abc"
    put(tmp_path, cached, "mine/tuned", "models--flat/other", "models--org--a--b/snapshots/x")
    (tmp_path / "mine/empty").mkdir()
    assert dict(discover(tmp_path)) == {
        "Qwen/Qwen3-0.6B": tmp_path / cached / "tokenizer.json",
        "mine/tuned": tmp_path / "mine/tuned/tokenizer.json",
        "models--flat/other": tmp_path / "models--flat/other/tokenizer.json",
        "org/a--b": tmp_path / "models--org--a--b/snapshots/x/tokenizer.json",
    }
    assert list(dict(discover(tmp_path / "mine/tuned"))) == ["tuned"]
    assert dict(discover(tmp_path / "missing")) == {}


def test_of_several_snapshots_the_current_one_counts(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    put(repository, "snapshots/old", "snapshots/main", "snapshots/new")
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("main\n")
    assert dict(discover(tmp_path)) == {"org/name": repository / "snapshots/main/tokenizer.json"}


def test_only_snapshots_of_repositories_have_names_of_their_own(tmp_path: Path) -> None:
    put(tmp_path, "models--org--name/files/x", "org--name/snapshots/x", "models--org--name/snapshots/x/deep")
    assert set(dict(discover(tmp_path))) == {
        "models--org--name/files/x",
        "org--name/snapshots/x",
        "models--org--name/snapshots/x/deep",
    }


def test_what_a_repository_points_to_goes_before_what_was_written_later(tmp_path: Path) -> None:
    current = tmp_path / "models--org--name/snapshots/main/tokenizer.json"
    put(tmp_path, "models--org--name/snapshots/main", "models--org--name/refs", "org/name")
    (tmp_path / "models--org--name/refs/main").write_text("main")
    os.utime(current, (1000, 1000))
    assert dict(discover(tmp_path))["org/name"] == current


def test_without_a_word_on_which_is_current_what_was_written_last_counts(tmp_path: Path) -> None:
    snapshots = tmp_path / "models--org--name/snapshots"
    for name, written_s in (("a", 3000), ("b", 1000), ("c", 2000)):
        put(snapshots, name)
        os.utime(snapshots / name / "tokenizer.json", (written_s, written_s))
    assert dict(discover(tmp_path)) == {"org/name": snapshots / "a/tokenizer.json"}


def test_a_link_to_nowhere_goes_behind_every_file(tmp_path: Path) -> None:
    snapshots = tmp_path / "models--org--name/snapshots"
    put(snapshots, "a")
    os.utime(snapshots / "a/tokenizer.json", (0.5, 0.5))
    (snapshots / "b").mkdir()
    (snapshots / "b/tokenizer.json").symlink_to("lost")
    assert dict(discover(tmp_path)) == {"org/name": snapshots / "a/tokenizer.json"}


def test_a_model_that_is_mounted_later_is_found_but_the_disk_is_not_read_for_every_unknown_name(
    tmp_path: Path,
) -> None:
    now_s = [0.0]
    discovery = Discovery(tmp_path, lambda: now_s[0])
    assert discovery.find("late") is None
    put(tmp_path, "late")
    now_s[0] = 9.9  # not yet ten seconds later
    assert discovery.find("late") is None
    now_s[0] = 10.0
    assert discovery.find("late") == tmp_path / "late/tokenizer.json"
    put(tmp_path, "later")
    now_s[0] = 19.9
    assert discovery.find("later") is None
    now_s[0] = 20.0
    assert discovery.find("later") == tmp_path / "later/tokenizer.json"
