"""Which file answers for which model, and what the settings may say."""

from pathlib import Path
from random import Random

import pytest

from app.engine.dataset import Datasets, open_datasets
from app.text import LocalTokenizer
from config import ConfigError
from config.loader import load
from config.settings import DatasetSettings
from tests.dataset.files import PROMPT, make_file, row


def said(datasets: Datasets, model: str) -> list[str] | None:
    dataset = datasets.of(model)
    if dataset is None:
        return None
    found = dataset.reply(PROMPT, (), 1, 5, Random(1))
    assert found is not None
    return list(found.texts)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A file each, in which the reply is the file's name."""
    names = ("general", "own")
    return {name: make_file(tmp_path / name, [row(PROMPT, [1], [name])]) for name in names}


def test_a_model_has_its_own_file_and_all_others_the_general_one(
    files: dict[str, Path], tokenizer: LocalTokenizer
) -> None:
    settings = DatasetSettings(dataset_path=(f"org/tiny={files['own']}", str(files["general"])))
    datasets = open_datasets(settings, tokenizer)
    assert said(datasets, "org/tiny") == ["own"]
    assert said(datasets, "other") == ["general"]
    datasets.close()


def test_without_a_general_file_other_models_have_none(
    files: dict[str, Path], tokenizer: LocalTokenizer
) -> None:
    datasets = open_datasets(DatasetSettings(dataset_path=(f"tiny={files['own']}",)), tokenizer)
    assert (said(datasets, "tiny"), said(datasets, "other")) == (["own"], None)
    assert datasets
    datasets.close()


def test_a_model_whose_own_file_is_broken_gets_the_general_one(
    files: dict[str, Path], tokenizer: LocalTokenizer
) -> None:
    files["own"].write_bytes(b"broken" * 1000)
    settings = DatasetSettings(dataset_path=(f"tiny={files['own']}", str(files["general"])))
    datasets = open_datasets(settings, tokenizer)
    assert said(datasets, "tiny") == ["general"]
    datasets.close()


def test_the_memory_is_that_of_the_catalogues_and_of_the_copies(
    tmp_path: Path, tokenizer: LocalTokenizer
) -> None:
    path = make_file(tmp_path / "replies", [row([number], [1] * 50) for number in range(2_000)])
    sizes_bytes = []
    for in_memory in (False, True):
        settings = DatasetSettings(dataset_path=(str(path),), dataset_in_memory=in_memory)
        datasets = open_datasets(settings, tokenizer)
        sizes_bytes.append(datasets.size_bytes)
        datasets.close()
    assert 2_000 * 32 < sizes_bytes[0] < 2_000 * 40
    assert sizes_bytes[1] == sizes_bytes[0] + path.stat().st_size


def test_the_first_equals_sign_ends_the_model() -> None:
    paths = ("a", "tiny = b=c")
    assert DatasetSettings(dataset_path=paths).files == {"": "a", "tiny": "b=c"}
    assert DatasetSettings(dataset_path=("=a=b",)).files == {"": "a=b"}


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["--dataset-path", "tiny="], "must name a file in every item"),
        (["--dataset-path", "a", "=b"], "must not name two files for the same model"),
        (["--dataset-path", "tiny=a", "tiny=b"], "must not name two files for the same model"),
        (["--dataset-path", "a", "--dataset-url", "ftp://b"], "must begin with http:// or https://"),
        (["--dataset-path", "a", "--dataset-sha256", "abc"], "must be 64 hexadecimal digits"),
        (["--dataset-url", "http://b"], "must be given together with dataset-path"),
        (["--dataset-path", "a", "--mode", "echo"], "must be empty in mode echo"),
        (["--dataset-path", "a", "--dataset-table-name", "a b"], "letters, digits and underscores"),
    ],
)
def test_settings_that_make_no_sense_stop_the_start(flags: list[str], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        load(flags, {})


def test_the_settings_of_a_download_are_taken() -> None:
    flags = ["--dataset-path", "a", "--dataset-url", "HTTPS://b/c", "--dataset-sha256", "aB" * 32]
    assert load(flags, {}).dataset.dataset_url == "HTTPS://b/c"
