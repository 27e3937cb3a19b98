"""Which tokenizer is loaded, and what happens when it is not there."""

import json
import logging
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.core.text.base import Tokenizer, TokenizerInputError, TokenizerLoadError
from app.core.text.files import fetch
from app.core.text.huggingface import EMBEDDED, LocalTokenizer, load_tokenizer
from config.settings import TokenizerSettings
from tests.core.tokenization.renderer import RendererWithoutProcess
from tests.hostile_files import damaged_files


def loaded(model: str, takes_media: bool | None = None, **settings: Any) -> Tokenizer:
    return load_tokenizer(model, TokenizerSettings(**settings), takes_media)


def name_of(model: str, **settings: Any) -> str:
    return loaded(model, **settings).name


def test_model_name_without_a_repository_uses_the_embedded_tokenizer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert name_of(model="tiny") == "embedded"
    assert caplog.records == []


def test_tokenizer_is_loaded_from_a_folder_or_a_file(tmp_path: Path) -> None:
    shutil.copy(EMBEDDED / "tokenizer.json", tmp_path)
    assert name_of(model="x", tokenizer=str(tmp_path)) == str(tmp_path)
    assert name_of(model=str(tmp_path)) == str(tmp_path)
    file = str(tmp_path / "tokenizer.json")
    assert name_of(model="x", tokenizer=file) == file


@pytest.mark.parametrize(
    ("class_name", "shown"),
    [
        ("Qwen2TokenizerFast", "Qwen2Tokenizer"),
        ("PreTrainedTokenizerFast", "TokenizersBackend"),
        (None, "TokenizersBackend"),
    ],
)
def test_tokenizer_info_has_the_fields_that_transformers_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, class_name: str | None, shown: str
) -> None:
    shutil.copy(EMBEDDED / "tokenizer.json", tmp_path)
    config = {"vocab_file": "/secret", "eos_token": {"content": "<end>"}}
    if class_name is not None:
        config["tokenizer_class"] = class_name
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokenizer = loaded(str(tmp_path))
    assert isinstance(tokenizer, LocalTokenizer)
    info = tokenizer.info()
    added = info.pop("added_tokens_decoder")
    assert info == {
        "tokenizer_class": f"TokenizerPoolCached{shown}",
        "eos_token": "<end>",
        "name_or_path": str(tmp_path),
        "is_local": True,
        "local_files_only": True,
    }
    assert isinstance(added, dict) and added["0"] == "<|endoftext|>"


def test_force_dummy_tokenizer_setting_selects_the_embedded_tokenizer() -> None:
    assert name_of(model="x", tokenizer="/nowhere", force_dummy_tokenizer=True) == "embedded"


@pytest.mark.parametrize(
    ("config", "takes_media"),
    [
        ('{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}', False),
        ('{"architectures": ["LlamaForCausalLM"], "vision_config": null}', False),
        ('{"architectures": ["Gemma3ForConditionalGeneration"]}', True),
        ('{"architectures": ["MolmoForCausalLM"]}', True),
        ('{"architectures": ["UltravoxModel"], "audio_config": {}}', True),
        ("{}", True),
        ("no json", True),
        (None, True),
    ],
)
def test_model_config_determines_whether_media_are_accepted(
    tmp_path: Path, config: str | None, takes_media: bool
) -> None:
    def takes(**settings: Any) -> bool:
        tokenizer = loaded(str(tmp_path), **settings)
        with suppress(TokenizerInputError):
            return bool(tokenizer.render_chat([{"role": "user", "content": [{"image_url": "x"}]}]))
        return False

    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert takes(force_dummy_tokenizer=True) is takes() is takes_media
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(EMBEDDED / name, tmp_path)
    assert takes() is takes_media
    assert [takes(takes_media=setting) for setting in (True, False)] == [True, False]


def test_model_folder_without_a_tokenizer_uses_the_embedded_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert name_of(model=str(tmp_path)) == "embedded"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no tokenizer.json" in caplog.text
    places = dict.fromkeys(["/nowhere/at/all", "./nowhere", "~/nowhere-at-all"], "not found")
    for name, flaw in (places | {str(tmp_path): "no tokenizer.json"}).items():
        with pytest.raises(TokenizerLoadError, match=flaw):
            loaded("x", tokenizer=name)


def cached_repository(cache: Path, name: str) -> Path:
    """Lay a repository out as the hub's library keeps it, and return its snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    shutil.copytree(EMBEDDED, snapshot, dirs_exist_ok=True)
    return snapshot


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer_config.json", b'{"chat_template": 3}', "chat_template: Expected"),
        (
            "tokenizer_config.json",
            b'{"chat_template": [{"name": "default", "template": 3}]}',
            "chat_template: Expected `str`, got `int`",
        ),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "a"}]}', "missing .* `template`"),
        ("chat_template.json", b'{"chat_template": [1]}', "chat_template: Expected `object`"),
        ("chat_template.jinja", b"\xff", "cannot be read"),
        ("additional_chat_templates/a.jinja", b"\xff", "cannot be read"),
        ("generation_config.json", b'{"eos_token_id": [[1]]}', "eos_token_id: Expected `int`"),
        ("generation_config.json", b'{"eos_token_id": "x"}', "eos_token_id: Expected"),
        ("config.json", b'{"eos_token_id": [1.5]}', "eos_token_id: Expected `int`"),
    ],
)
def test_field_of_another_type_is_one_line_that_names_the_file(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    shutil.copy(EMBEDDED / "tokenizer.json", tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerLoadError, match=reason) as caught:
        LocalTokenizer.from_path(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


GOOD_FILES = {
    "tokenizer_config.json": (
        b'{"chat_template": [{"name": "default", "template": "a"}], "eos_token": {"content": "b"},'
        b' "bos_token": "<s>", "added_tokens_decoder": {"0": {"content": "c", "special": true}}}'
    ),
    "special_tokens_map.json": b'{"eos_token": {"content": "b"}, "pad_token": "c"}',
    "chat_template.json": b'{"chat_template": "{{ messages }}"}',
    "chat_template.jinja": b"{% for m in messages %}{{ m.content }}{% endfor %}",
    "generation_config.json": b'{"eos_token_id": [1, 2], "temperature": 0.5}',
    "config.json": (
        b'{"architectures": ["A"], "vocab_size": 9, "eos_token_id": 1, "vision_config": {"a": 1},'
        b' "text_config": {"vocab_size": 6, "max_position_embeddings": 100}}'
    ),
}


@pytest.mark.parametrize("name", GOOD_FILES)
def test_damaged_file_beside_a_tokenizer_is_read_or_refused_with_one_line(
    tmp_path: Path, name: str
) -> None:
    shutil.copy(EMBEDDED / "tokenizer.json", tmp_path)
    for damage, content in damaged_files(GOOD_FILES[name]).items():
        (tmp_path / name).write_bytes(content)
        try:
            tokenizer = LocalTokenizer.from_path(tmp_path, renderer=RendererWithoutProcess())
            tokenizer.info()
            with suppress(TokenizerInputError):  # a template may fail
                tokenizer.encode_chat([{"role": "user", "content": "hi"}])
        except TokenizerLoadError as error:
            assert str(tmp_path / name) in str(error), damage
            assert "\n" not in str(error), damage


def test_cached_repository_needs_no_network(tmp_path: Path) -> None:
    snapshot = cached_repository(tmp_path, "somebody/small")
    assert fetch("somebody/small", cache=tmp_path) == snapshot
    assert LocalTokenizer.from_path(snapshot).encode("a") != []
    tokenizer = loaded("x", tokenizer="somebody/small", tokenizers_cache_dir=str(tmp_path))
    assert tokenizer.name == "somebody/small"
