"""What stops the start:

one line that names the setting, the value, where it stands and the rule.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.settings import load
from config import ConfigError

Write = Callable[[str], str]


def refusal(argv: list[str], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(argv, environ or {})
    line = str(caught.value)
    assert line and "\n" not in line
    return line


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--model", ""], "setting model: '' (flag --model) must not be empty"),
        (["--port", "0"], "setting port: '0' (flag --port) must be between 1 and 65535"),
        (
            ["--port", "8k"],
            "setting port: '8k' (flag --port) must be a whole number (of at most 64 bits)",
        ),
        (["--inter-token-latency", "-1ms"], "setting inter-token-latency: '-1ms' (flag"),
        (
            ["--inter-token-latency", "10ms", "--inter-token-latency-std-dev", "4ms"],
            "setting inter-token-latency-std-dev: '4ms' (flag --inter-token-latency-std-dev) "
            "must not be more than 30 % of inter-token-latency",
        ),
        (["--time-factor-under-load", "0.9"], "must be at least 1.0"),
        (["--time-factor-under-load", "nan"], "must be a number"),
        (["--max-request-body-size-mb", "513"], "must be between 1 and 512"),
        (["--client-timeout", "0"], "must be longer than 0s"),
        (["--kv-cache-metrics-sample", "0"], "must be greater than 0 and at most 1"),
        (["--served-model-name", " "], "must not contain an empty item"),
        (["--access-log=maybe"], "must be true or false"),
        (
            ["--kv-events-replay-endpoint", "tcp://127.0.0.1:*"],
            "is wrong: must be a ZMQ address such as tcp://HOST:PORT",
        ),
        (
            ["--kv-events-replay-endpoint", "udp://a:1"],
            "is wrong: must be a ZMQ address that begins with tcp://, ipc://, or inproc://",
        ),
        (["--no-port"], "unknown flag --no-port"),
        (["--no-access-log=true"], "flag --no-access-log does not accept a value"),
        (["--"], "unknown flag --"),
        (["--port"], "flag --port requires a value"),
        (["-v", "loud"], "flag -v: 'loud' must be a whole number"),
        (["8000"], "unexpected argument '8000'"),
        (["--enforce-eager", "a/model"], "flag --enforce-eager: 'a/model' must be true or false"),
        (["--grpc", "--self-signed-certs"], "setting grpc: "),
        (["--grpc", "--fast-path", "false"], "setting fast-path: "),
        (["--grpc-port", "8000", "--port", "8000"], "setting grpc-port: "),
        (
            ["--uds", "/run/a", "--data-parallel-size", "2"],
            "setting uds: '/run/a' (flag --uds) must be empty",
        ),
        (
            ["--uds", "/run/a", "--grpc-port", "9000"],
            "(flag --grpc-port) must be empty when uds is set",
        ),
        (
            ["--config", "/nowhere.yaml"],
            "YAML file /nowhere.yaml cannot be read: No such file or directory",
        ),
    ],
)
def test_invalid_command_line_is_rejected_with_a_one_line_error(argv: list[str], line: str) -> None:
    assert line in refusal(argv)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("prot: 1", "unknown key 'prot'; did you mean port?"),
        ("1: 2", "unknown key '1'"),
        ("port: 0", "must be between 1 and 65535"),
        ("port: true", "must be a whole number"),
        ("model: 7", "must be text"),
        ("inter-token-latency: 0.5", "must be a duration"),
        ("time-factor-under-load: .inf", "must be a number"),
        ("served-model-name: [1]", "must be a list of texts"),
        ("port: 1\nport: 2", "port is specified twice"),
        ("max-num-seqs: 1\nmax_num_seqs: 2", "max-num-seqs is specified twice"),
        ("- port", "must map setting names to values"),
        ("port: [", "cannot be parsed"),
        ("!!python/object:os.system {}", "cannot be parsed"),
    ],
)
def test_invalid_yaml_file_is_rejected_with_a_one_line_error(
    yaml_file: Write, text: str, line: str
) -> None:
    path = yaml_file(text)
    message = refusal(["--config", path])
    assert line in message and path in message


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("port: 1\nmodel: [1, 2\nseed: 3\n", "line 3: expected ',' or ']', but got ':': seed: 3"),
        ("port: 1\n\tseed: 2\n", "line 2: found character '\\t' that cannot start any token: seed"),
        ('port: 1\nmodel: "abc\n\n', 'line 2: found unexpected end of stream: model: "abc'),
        ("seed: 1\nport: 1\nport: 2\n", "line 3: port is specified twice: port: 2"),
    ],
)
def test_broken_yaml_file_is_reported_with_its_line(
    yaml_file: Write, text: str, place: str
) -> None:
    path = yaml_file(text)
    message = refusal(["--config", path])
    assert f"YAML file {path} cannot be parsed: {place}" in message
    assert "unicode string" not in message


def test_yaml_file_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"model: caf\xe9")
    assert "cannot be parsed" in refusal(["--config", str(path)])
    assert "cannot be read: Is a directory" in refusal(["--config", str(tmp_path)])


def test_error_names_the_environment_variable_of_the_invalid_value() -> None:
    line = refusal([], {"SIM_PORT": "tcp://10.0.0.1:80"})
    assert line.startswith(
        "setting port: 'tcp://10.0.0.1:80' (environment variable SIM_PORT) must be"
    )


def test_error_truncates_long_values_and_hides_secrets() -> None:
    assert len(refusal(["--mode", "x" * 5000])) < 200
    assert refusal(["--mode", "a\nb"])


@pytest.mark.parametrize(
    ("base", "deviation"), [("100ms", "30ms"), ("70ms", "21ms"), ("10us", "3us")]
)
def test_standard_deviation_of_exactly_30_percent_of_the_mean_is_accepted(
    base: str, deviation: str
) -> None:
    load(["--time-to-first-token", base, "--time-to-first-token-std-dev", deviation], {})


def test_error_names_the_invalid_setting_that_the_reference_lists_first() -> None:
    order = ["model", "port", "prefill-overhead", "max-num-seqs", "max-request-body-size-mb"]
    wrong = {"model": "", "port": "0", "prefill-overhead": "-1ms", "max-num-seqs": "0"}
    wrong["max-request-body-size-mb"] = "0"
    while order:
        argv = [word for name in reversed(order) for word in (f"--{name}", wrong[name])]
        assert refusal(argv).startswith(f"setting {order.pop(0)}:")
