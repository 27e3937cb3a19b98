"""Checks that vLLM makes of a parsed command line, before it builds its configuration.

They are the checks of `validate_parsed_serve_args`, and one limit of the scheduler that people
meet when they start a large batch. vLLM ends with status 1 after these; here the status is that of
the parser, because they are mistakes of the command line, too.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from config.declaration import shown, suggestion
from config.flag_words import FlagError
from config.sources import FlagValues
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

TEMPLATE = "chat-template"
RUST_FRONTEND = "VLLM_USE_RUST_FRONTEND"
"""Variable that vLLM requires for `--grpc-port`."""
JINJA_CHARACTERS = "{}\n"
"""A chat template with one of these is the text of a template, as in vLLM, else a path."""
BUILT_IN_TEMPLATES = tuple(
    f"template_{name}.jinja"
    for name in (
        *("basic", "blip2", "chatml", "deepseek_ocr", "deepseek_vl2", "kimi_audio", "minicpmv45"),
    )
)
"""Templates in vLLM's package, which are valid without a folder."""

ADAPTER_FIELDS = ("name", "path", "base_model_name", "is_3d_lora_weight")
REQUIRED_ADAPTER_FIELDS = 2


def check_parsed(
    values: FlagValues, environ: Mapping[str, str], skips_model_check: bool = False
) -> None:
    """Raises FlagError for the first of `contradictions`, or for a missing chat template."""
    if not skips_model_check and is_missing_template(str(values.get(TEMPLATE, ""))):
        text = f"{shown(values[TEMPLATE])} does not exist (--skip-model-check starts without it)"
        raise _wrong(f"--{TEMPLATE}", text)
    for error in contradictions(values, environ):
        raise error


def contradictions(values: FlagValues, environ: Mapping[str, str]) -> Iterator[FlagError]:
    """Yields why vLLM would not start with values that are valid alone: one error an option.

    Raises:
        ValueError: The value of an option is not known, and another one depends on it.
    """
    yield from _of_grpc_port(values, environ)
    if _is_on(values, "enable-auto-tool-choice") and "tool-call-parser" not in values:
        yield _refused("--enable-auto-tool-choice", "requires --tool-call-parser")
    if _is_on(values, "enable-log-outputs") and not _is_on(values, "enable-log-requests"):
        yield _refused("--enable-log-outputs", "requires --enable-log-requests")
    if _number(values, "sse-keep-alive-interval", 0) < 0:
        yield _wrong("--sse-keep-alive-interval", "must be at least 0")
    if _is_on(values, "enable-per-request-metrics") and _is_on(values, "disable-log-stats"):
        yield _refused("--enable-per-request-metrics", "cannot be used with --disable-log-stats")
    yield from _of_adapters(values)
    yield from _of_batch(values)


def is_missing_template(path: str) -> bool:
    """Returns whether vLLM would look for the file of a chat template without success."""
    return is_missing_file(path) and path not in BUILT_IN_TEMPLATES


def is_missing_file(template: str) -> bool:
    """Returns whether a chat template names a file that does not exist."""
    if not template or any(character in template for character in JINJA_CHARACTERS):
        return False
    try:
        return not Path(template).exists()
    except (OSError, ValueError):  # no file can have this name
        return True


def _of_grpc_port(values: FlagValues, environ: Mapping[str, str]) -> Iterator[FlagError]:
    if "grpc-port" not in values:
        return
    flag = "--grpc-port"
    if _is_on(values, "grpc"):
        yield _refused(flag, "cannot be used with --grpc")
    elif environ.get(RUST_FRONTEND) != "1":
        yield _refused(flag, f"requires the environment variable {RUST_FRONTEND}=1")
    elif "headless" in values or _number(values, "api-server-count", 1) <= 0:
        yield _refused(flag, "cannot be used with --headless")
    elif _is_on(values, "data-parallel-multi-port-external-lb"):
        yield _refused(flag, "cannot be used with --data-parallel-multi-port-external-lb")


def _of_adapters(values: FlagValues) -> Iterator[FlagError]:
    items = values.get("lora-modules")
    if not isinstance(items, list):
        return
    for item in items:
        if "=" in item and "," not in item:
            continue
        try:
            module = decode_untrusted(item, decoder=python_json)
        except UntrustedDataError:
            module = None
        flaw = _adapter_flaw(module, item)
        if flaw:
            yield _wrong("--lora-modules", flaw)
            return


def _adapter_flaw(module: object, item: str) -> str:
    """Returns what is wrong with an adapter; an empty text for nothing."""
    if not isinstance(module, dict):
        return f"{shown(item)} must be NAME=PATH or JSON"
    for field in module:
        if field not in ADAPTER_FIELDS:
            return f"unknown field `{field}`{suggestion(field, names=ADAPTER_FIELDS)}"
    for field in ADAPTER_FIELDS[:REQUIRED_ADAPTER_FIELDS]:
        if field not in module:
            return f"{field} is required, got {shown(item)}"
    return ""


def _of_batch(values: FlagValues) -> Iterator[FlagError]:
    sequences = values.get("max-num-seqs")
    tokens = values.get("max-num-batched-tokens")
    if isinstance(sequences, str) and isinstance(tokens, str) and int(sequences) > int(tokens):
        yield _wrong(
            "--max-num-seqs",
            f"{sequences} must not be more than --max-num-batched-tokens ({tokens})",
        )
        return
    active = values.get("max-num-active-seqs")
    if isinstance(sequences, str) and isinstance(active, str) and int(active) > int(sequences):
        yield _wrong(
            "--max-num-active-seqs", f"{active} must not be more than --max-num-seqs ({sequences})"
        )


def _refused(form: str, text: str) -> FlagError:
    """Returns the error for a flag that vLLM refuses; `text` completes "flag --name"."""
    return FlagError(f"{form} {text}", form=form)


def _wrong(form: str, text: str) -> FlagError:
    """Returns the error for the value of a flag."""
    return FlagError(f"{form}: {text}", form=form, rule="valid value")


def _is_on(values: FlagValues, name: str) -> bool:
    return values.get(name) == "true"


def _number(values: FlagValues, name: str, default: int) -> int:
    value = values.get(name)
    return int(value) if isinstance(value, str) else default
