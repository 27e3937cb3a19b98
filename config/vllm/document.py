"""Writes docs/serve.md from vLLM's options and their effects here: `python -m config.vllm.document`."""

import json
from pathlib import Path

import msgspec

from config.settings import TABLE
from config.vllm.command_line import OBSOLETE, names_of
from config.vllm.meanings import DEFAULTS, KEEP_ALIVE, MEANINGS
from config.vllm.options import Option, groups

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"

_INTRODUCTION = """\
# vLLM's command line

<!-- Written by `python -m config.vllm.document`; change config/vllm instead. -->

`python -m app serve` takes the command line of `vllm serve` as it is:

    python -m app serve meta-llama/Llama-3.1-8B-Instruct --gpu-memory-utilization 0.9 --dtype bfloat16 \\
        --max-model-len 8k --enable-auto-tool-choice --tool-call-parser llama3_json -tp 4 \\
        --kv-events-config '{"enable_kv_cache_events": true, "topic": "kv@pod@model"}'

* All options of vLLM 0.32 are known. Those that have a meaning here act; all others are checked as vLLM's
  parser checks them, and named in one line at the start.
* A wrong value and an unknown option stop the start with one line and exit status 1. A name may be written in
  short, as far as it is clear (`--max-num-seq`).
* Underscores for dashes, `8k` (8,000) and `8K` (8,192), `--kv-events-config.topic kv@`, `--a.b+ x,y`, `-O3`,
  and `--config file.yaml` are understood as by vLLM.
* The settings of [configuration.md](configuration.md) are options, too (`--time-to-first-token 100ms`),
  unless vLLM has one of that name; so are their environment variables. Of what the line does not say, a
  variable decides, then the YAML file of `SIM_CONFIG`.

## The image

The container's entry point takes what that of `vllm/vllm-openai` takes: `--model NAME ...`, `NAME ...`,
`serve NAME ...`; a command `vllm serve NAME ...` is there for who replaces the entry point. So a service or a
pod moves over with its `image` changed and nothing else: `vllm` in
[docker-compose.vllm.yml](../docker-compose.vllm.yml). A device reservation (`deploy.resources.reservations`,
`nvidia.com/gpu`) still asks the engine for a GPU: leave it out where there is none. The image runs as user
10001, so a cache that is mounted below `/root` is not read: nothing is loaded anyway.

## Defaults

What a line does not say is as in vLLM, where that differs from our settings' own defaults:

"""
_VARIABLES = """\
## Environment variables

| variable | here |
|---|---|
"""
_OTHER_VARIABLES = """\

All others that vLLM reads (`VLLM_ATTENTION_BACKEND`, `VLLM_USE_V1` ...) change nothing. `VLLM_PORT` is no
exception: vLLM's processes find each other by it; requests go to `--port`.
"""
WHY = {
    "server": "Others are about web pages, logs and processes that are not here, or about clients' trust.",
    "model": "Others say how weights and tokenizers are read and computed with; there are no weights.",
    "load": "There is nothing to load.",
    "kernels": "There is nothing to compute.",
    "parallel": "One process a data parallel rank plays all devices.",
    "cache": "Others are about memory that is not there.",
    "offload": "Nothing is offloaded.",
    "multimodal": "Whether media are taken: see docs/api.md. The limits are not looked at.",
    "lora": "Adapters are names here: their weights are not read.",
    "observability": "Others ask for measurements of what is not there.",
    "scheduler": "Others cut prompts into the steps of a device; here a prompt takes its time as one.",
    "engine": "Others are about speculation, kernels and graphs.",
}


UNPLAYED = {
    "chat-template-content-format": "whether contents are texts or lists; found out from the template",
    "trust-request-mm-kwargs": "400 for arguments of media processors; they change nothing",
    "tool-strict-level": "how far the grammar of tool calls goes; calls always keep to their schema",
    "tool-server": "tools that the server itself calls; there are none",
    "cohere-is-reasoning-model": "the form of Cohere's route, which is not here",
    "cohere-format": "the same",
    "uds": "a socket of the file system; requests come by TCP",
    "ssl-ca-certs": "certificates of clients; none is asked for",
    "ssl-cert-reqs": "the same",
    "ssl-ciphers": "the choice of ciphers; it is Python's",
    "h11-max-incomplete-event-size": "limits of a request's head; they are the server's own",
    "h11-max-header-count": "the same",
    "middleware": "code of others; plugins take its place (docs/plugins.md)",
    "logprobs-mode": "which log probabilities are told; they are made up",
    "enable-prompt-embeds": "prompts as embeddings; they are refused, as without it",
    "enable-return-routed-experts": "routed_experts of answers; null",
    "return-sampling-mask": "the mask of allowed tokens; none is told",
    "limit-mm-per-prompt": "400 for more media than that",
    "allowed-local-media-path": "files as media; none is read",
    "allowed-media-domains": "400 for media from other hosts; nothing is fetched",
    "pipeline-parallel-size": "`pp` in system_fingerprint",
    "enable-expert-parallel": "`ep` in system_fingerprint",
    "per-request-spec-decode-metrics": "speculative_decoding in metrics; null",
    "custom-histogram-buckets": "bounds of the metrics' buckets; they are vLLM's own",
    "show-hidden-metrics-for-version": "families of older versions",
    "max-num-queued-tokens": "503 for too many tokens in line; max-num-queued-reqs is played",
    "stream-interval": "several tokens in a chunk; each has its own",
}
"""Option without effect here -> the effect in vLLM that a client would notice."""


def render() -> str:
    shown = {name: f"`{value}`" if value else "empty" for name, value in DEFAULTS.items()}
    defaults = "".join(f"* `{name}`: {value}\n" for name, value in shown.items())
    parts = [_INTRODUCTION + defaults, _VARIABLES + "".join(_variables()) + _OTHER_VARIABLES]
    parts += [_group(name, members) for name, members in groups().items()]
    return "\n".join([*parts, _unplayed(), _obsolete()])


def _group(name: str, members: dict[str, Option]) -> str:
    head = (
        f"## {name.capitalize()}\n\n{WHY[name]}\n\n| option | value | default | here |\n|---|---|---|---|\n"
    )
    return head + "".join(_line(option, facts) for option, facts in members.items())


def _line(name: str, facts: Option) -> str:
    told = MEANINGS[name].told if name in MEANINGS else ""
    names = " ".join(f"`{form}`" for form in names_of(name))
    default = "" if facts.default is msgspec.UNSET else f"`{json.dumps(facts.default)}`"
    return f"| {names} | {_kind(facts)} | {default} | {told} |\n"


def _kind(facts: Option) -> str:
    if facts.kind == "switch":
        return ""
    kind = " ".join(f"`{choice}`" for choice in facts.choices) or facts.kind
    return f"{kind}, several" if facts.many else kind


def _variables() -> list[str]:
    lines = [
        f"| `{name}` | Setting `{row.name}`: {row.help} |\n"
        for row in TABLE
        for name in row.env
        if not name.startswith("SIM_")
    ]
    return [*lines, f"| `{KEEP_ALIVE}` | Setting `keep-alive-timeout`, in seconds. |\n"]


def _unplayed() -> str:
    head = (
        "## What a client would notice, and does not\n\nThe options that change what vLLM answers, and "
        "nothing here:\n\n| option | about |\n|---|---|\n"
    )
    return head + "".join(f"| `--{name}` | {about} |\n" for name, about in UNPLAYED.items())


def _obsolete() -> str:
    names = ", ".join(f"`--{name}`" for group in OBSOLETE.values() for name in sorted(group))
    head = (
        "## Options of earlier versions\n\nAccepted, though vLLM 0.32 has them no more; they change nothing"
    )
    return f"{head}: {names}.\n"


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
