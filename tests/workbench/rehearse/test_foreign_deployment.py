"""Deployments of strangers: which options the stand-ins get, and which files are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.workbench.opened_files import no_file_is_opened_in
from workbench.check.command import read_lines_of
from workbench.fleet.isolation import SERVER_FOLDER, Isolation
from workbench.rehearse.deployment import DEFAULT_MODEL, MAX_TEMPLATE_BYTES, Deployment

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
MODEL = "Qwen/Qwen3-8B"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, beside a folder of secrets."""
    folder = tmp_path / "checkout"
    for name in (folder, tmp_path / "stand-in", tmp_path / "secrets"):
        name.mkdir()
    (tmp_path / "secrets" / "template.jinja").write_text(TEMPLATE)
    monkeypatch.chdir(folder)
    return folder


def played(checkout: Path, *words: str, kind: str = "run.sh") -> Deployment:
    """The deployment of a script or a manifest with the command line."""
    file = checkout / kind
    if kind == "run.sh":
        file.write_text("vllm serve " + " ".join(f"'{word}'" for word in words) + "\n")
    else:
        container = {"name": "a", "image": "vllm/vllm-openai:v0.32.0", "args": list(words)}
        file.write_text(yaml.safe_dump({"kind": "Pod", "spec": {"containers": [container]}}))
    [line] = read_lines_of([kind], [])
    return Deployment(line, str(checkout.parent / "stand-in"))


def test_options_that_open_nothing_reach_the_stand_in(checkout: Path) -> None:
    options = ("--max-num-seqs", "8", "--enable-prompt-tokens-details", "--lora-modules", "a=/b/c")
    server = played(checkout, MODEL, *options, "--enable-lora", "--port=80", "--host", "::")
    assert server.words("0.32.0") == [
        MODEL,
        "--max-num-seqs=8",
        "--enable-prompt-tokens-details",
        *("--lora-modules", "a=/b/c"),
        "--enable-lora",
    ]
    assert server.lost == []


@pytest.mark.parametrize(
    "words",
    [
        ("--middleware", "stranger.mw"),
        ("--middlewar=stranger.mw",),
        ("--tokenizer", "stranger/name"),
        ("--tokenizer", "/etc"),
        ("--tool-parser-plugin", "stranger.py"),
        ("--reasoning-parser-plugin", "stranger.py"),
        ("--io-processor-plugin", "stranger"),
        ("--hf-config-path", "/etc"),
        ("--generation-config", "/etc"),
        ("--logits-processors", "stranger:A"),
        ("--tool-server", "stranger.example:80"),
    ],
)
def test_option_that_can_change_answers_is_named(checkout: Path, words: tuple[str, ...]) -> None:
    server = played(checkout, MODEL, *words)
    assert server.words("0.32.0") == [MODEL]
    assert len(server.lost) == 1
    assert f"--{server.lost[0]}".startswith(words[0].partition("=")[0])


def test_option_of_the_machine_is_left_out(checkout: Path) -> None:
    words = ("--ssl-keyfile", "/a", "--uds", "/b", "--otlp-traces-endpoint", "http://c:1")
    config = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
    others = ("--log-config-file", "/d", "--kv-transfer-config", config, "--worker-cls", "e.F")
    server = played(checkout, MODEL, *words, *others, "--tokenizer", MODEL)
    assert server.words("0.32.0") == [MODEL]
    assert server.lost == []
    assert server.notes == [
        "--kv-transfer-config is left out: the stand-ins ignore `kv_transfer_params`"
    ]


def test_flag_that_begins_like_a_setting_of_the_server_is_written_in_full(checkout: Path) -> None:
    server = played(checkout, MODEL, "--profile", '{"profiler": "cuda"}')
    assert server.words("0.32.0") == [MODEL, '--profiler-config={"profiler": "cuda"}']


@pytest.mark.parametrize("model", ["/etc", "../Qwen3-8B", "~root/Qwen3-8B", "./Qwen3-8B"])
def test_model_that_is_a_path_is_no_name(checkout: Path, model: str) -> None:
    words = played(checkout, model).words("0.32.0")
    assert words == [DEFAULT_MODEL, "--served-model-name", model]


def test_option_with_an_unknown_value_is_named_if_it_never_passes(checkout: Path) -> None:
    file = checkout / "run.sh"
    file.write_text(f"vllm serve {MODEL} --middleware $MIDDLEWARE --max-num-seqs $COUNT\n")
    [line] = read_lines_of(["run.sh"], [])
    server = Deployment(line, str(checkout.parent / "stand-in"))
    assert server.words("0.32.0") == [MODEL]
    assert server.lost == ["middleware"]


def test_parser_of_a_plugin_leaves_with_the_plugin(checkout: Path) -> None:
    words = ("--tool-call-parser", "ours", "--enable-auto-tool-choice")
    server = played(checkout, MODEL, *words, "--tool-parser-plugin", "ours.py")
    assert server.words("0.32.0") == [MODEL]
    assert sorted(server.lost) == ["tool-call-parser", "tool-parser-plugin"]


@pytest.mark.parametrize("kind", ["run.sh", "pod.yaml"])
def test_template_in_the_command_line_reaches_the_stand_in(checkout: Path, kind: str) -> None:
    server = played(checkout, MODEL, "--chat-template", TEMPLATE, kind=kind)
    path = checkout.parent / "stand-in" / "chat_template.jinja"
    assert server.words("0.32.0") == [MODEL, f"--chat-template={path}"]
    assert path.read_text() == TEMPLATE
    assert server.lost == []


def test_template_of_the_checkout_is_copied(checkout: Path) -> None:
    (checkout / "template.jinja").write_text(TEMPLATE)
    (checkout / "link.jinja").symlink_to("template.jinja")
    for name in ("template.jinja", "link.jinja", str(checkout / "template.jinja")):
        server = played(checkout, MODEL, "--chat-template", name)
        path = checkout.parent / "stand-in" / "chat_template.jinja"
        assert server.words("0.32.0") == [MODEL, f"--chat-template={path}"]
        assert path.read_text() == TEMPLATE
        path.unlink()


@pytest.mark.parametrize(
    "name", ["../secrets/template.jinja", "link.jinja", "folder/template.jinja", ".git/config"]
)
def test_template_outside_of_the_checkout_is_not_opened(checkout: Path, name: str) -> None:
    secrets = checkout.parent / "secrets"
    (checkout / "link.jinja").symlink_to(secrets / "template.jinja")
    (checkout / "folder").symlink_to(secrets)
    (checkout / ".git").mkdir()
    (checkout / ".git" / "config").write_text(TEMPLATE)
    server = played(checkout, MODEL, "--chat-template", name)
    with no_file_is_opened_in(secrets), no_file_is_opened_in(checkout / ".git"):
        assert server.words("0.32.0") == [MODEL]
    assert server.lost == ["chat-template"]


def test_pipe_or_large_file_as_a_template_is_refused(checkout: Path) -> None:
    os.mkfifo(checkout / "pipe")
    (checkout / "large").write_bytes(b"{" * (MAX_TEMPLATE_BYTES + 1))
    for name in ("pipe", "large", "."):
        server = played(checkout, MODEL, "--chat-template", name)
        assert server.words("0.32.0") == [MODEL]
        assert server.lost == ["chat-template"]


def test_file_of_options_that_is_not_read_is_named(checkout: Path) -> None:
    secret = checkout.parent / "secrets" / "vllm.yaml"
    secret.write_text("middleware: stranger.mw\n")
    server = played(checkout, MODEL, "--config", "../secrets/vllm.yaml")
    assert server.words("0.32.0") == [MODEL]
    assert server.lost == ["config"]
    server = played(checkout, MODEL, "--config", str(secret), kind="pod.yaml")
    assert server.words("0.32.0") == [MODEL]
    assert (server.lost, len(server.notes)) == ([], 1)
    assert "is not here, so its options are not checked" in server.notes[0]


def test_options_of_a_file_of_the_checkout_pass_as_others_do(checkout: Path) -> None:
    content = "middleware: stranger.mw\nmax-num-seqs: 8\nserved-model-name: [a, --uds=/x]\n"
    (checkout / "vllm.yaml").write_text(content)
    server = played(checkout, MODEL, "--config", "vllm.yaml")
    assert server.words("0.32.0") == [MODEL, "--max-num-seqs=8", "--served-model-name", "a"]
    assert server.lost == ["middleware"]


def test_variables_of_the_deployment_stay_outside(checkout: Path) -> None:
    (checkout / "run.sh").write_text(
        f"export VLLM_SERVER_DEV_MODE=1 SIM_SCRIPT=/etc/passwd LD_PRELOAD=/x\nvllm serve {MODEL}\n"
    )
    [line] = read_lines_of(["run.sh"], [])
    server = Deployment(line, str(checkout.parent / "stand-in"))
    assert server.words("0.32.0") == [MODEL]
    assert server.notes == ["the stand-ins do not get the variables VLLM_SERVER_DEV_MODE"]


def test_template_of_the_image_is_a_note(checkout: Path) -> None:
    secret = str(checkout.parent / "secrets" / "template.jinja")
    server = played(checkout, MODEL, "--chat-template", secret, kind="pod.yaml")
    assert server.words("0.32.0") == [MODEL]
    assert server.lost == []
    assert server.notes == ["--chat-template names a file that is not here, and is left out"]


def test_stand_in_of_a_stranger_imports_no_module_of_the_checkout(checkout: Path) -> None:
    outside = str(checkout.parent / "secrets")
    (checkout / "link").symlink_to(outside)
    paths = [SERVER_FOLDER, ".", "", str(checkout), str(checkout / "src"), outside]
    environ = {"PYTHONPATH": os.pathsep.join(paths), "PATH": "/bin"}
    variables = Isolation("/stand-in", str(checkout)).environment(environ)
    assert variables["PYTHONPATH"].split(os.pathsep) == [SERVER_FOLDER, outside]
    assert (variables["HF_HUB_OFFLINE"], variables["PATH"]) == ("1", "/bin")
