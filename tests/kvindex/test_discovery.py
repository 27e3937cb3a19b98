"""Which models a directory holds tokenizers of."""

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


def test_a_model_that_is_mounted_later_is_found_but_the_disk_is_not_read_for_every_unknown_name(
    tmp_path: Path,
) -> None:
    now_s = [0.0]
    discovery = Discovery(tmp_path, lambda: now_s[0], rescan_s=10)
    assert discovery.find("late") is None
    put(tmp_path, "late")
    now_s[0] = 9.9
    assert discovery.find("late") is None
    now_s[0] = 10.0
    assert discovery.find("late") == tmp_path / "late/tokenizer.json"
