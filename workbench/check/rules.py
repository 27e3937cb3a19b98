"""The codes of findings, and `finding`, which makes one."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.check.findings import Finding, Place, Rule

RULES: Mapping[str, Rule] = {
    "O101": Rule("error", "unknown option"),
    "O102": Rule("error", "removed option"),
    "O103": Rule("error", "renamed option"),
    "O104": Rule("error", "wrong value"),
    "O105": Rule("error", "unknown key in a JSON option"),
    "O106": Rule("error", "missing or unexpected value"),
    "O107": Rule("error", "option of a later version"),
    "O108": Rule("warning", "switch that the YAML file does not turn off"),
    "O109": Rule("warning", "environment variable that is no longer read"),
    "O110": Rule("error", "program behind the entry point of the image"),
    "O111": Rule("warning", "text that vLLM ignores"),
    "O112": Rule("error", "unexpected argument"),
    "O113": Rule("error", "unknown name of a parser, a method, or a backend"),
    "O114": Rule("error", "several words in one entry"),
    "O115": Rule("error", "options behind the end of the command"),
    "O116": Rule("warning", "words that Compose leaves out"),
    "O117": Rule("error", "text that Compose cannot split"),
    "C201": Rule("error", "tool choice without a parser"),
    "C202": Rule("error", "parallelism that does not divide the model"),
    "C203": Rule("warning", "LoRA options that have no effect"),
    "C204": Rule("error", "batch shorter than the context without chunked prefill"),
    "C205": Rule("error", "more sequences than tokens in a batch"),
    "C206": Rule("error", "speculative decoding that cannot start"),
    "C207": Rule("error", "data parallelism that cannot start"),
    "C208": Rule("error", "options that contradict each other"),
    "C209": Rule("error", "more devices than there are"),
    "C210": Rule("error", "KV connector that cannot start"),
    "M301": Rule("error", "does not fit in the memory"),
    "M302": Rule("error", "context longer than the KV cache"),
    "M303": Rule("warning", "fits by less than the margin"),
    "M304": Rule("note", "fits in the memory"),
    "M305": Rule("note", "memory not checked"),
    "D401": Rule("warning", "tool parser of another model"),
    "D402": Rule("warning", "reasoning parser of another model"),
    "D403": Rule("error", "context above that of the model"),
    "D404": Rule("warning", "chat options of a model that does not chat"),
    "D405": Rule("error", "format that the device cannot compute"),
    "D406": Rule("error", "model that needs code of its repository"),
    "D407": Rule("note", "unknown model"),
    "D408": Rule("error", "configuration file that does not exist"),
    "D409": Rule("warning", "chat template that is not here"),
    "D410": Rule("error", "runner that the model does not have"),
    "F501": Rule("note", "value that is not known"),
    "F502": Rule("note", "version that is not known"),
    "F503": Rule("note", "text that is not read"),
    "F504": Rule("note", "module that the server imports"),
    "K701": Rule("warning", "more devices than vLLM uses"),
    "K702": Rule("warning", "little shared memory"),
    "K703": Rule("warning", "probe shorter than loading takes"),
    "K704": Rule("warning", "probe or service of another port or path"),
    "K705": Rule("error", "service that sets a variable of vLLM"),
    "K706": Rule("warning", "image without a version"),
    "K707": Rule("warning", "secret in a file"),
    "U601": Rule("note", "behavior that the upgrade changes"),
    "U602": Rule("note", "metric that the upgrade removes"),
    "U603": Rule("note", "default that the upgrade changes"),
    "U604": Rule("warning", "answer that the upgrade changes"),
    "U605": Rule("note", "answers that the upgrade keeps"),
    "U606": Rule("note", "changes that the upgrade does not report"),
    "W801": Rule("error", "query of a removed metric"),
    "W802": Rule("error", "query of a renamed metric"),
    "W803": Rule("error", "query of a misspelled metric"),
    "W804": Rule("warning", "query of an unknown metric"),
    "W805": Rule("error", "query of a metric of a later version"),
    "W806": Rule("warning", "label that the metric does not have"),
    "W807": Rule("error", "value that the label never has"),
    "W808": Rule("warning", "rate of a gauge"),
    "W809": Rule("error", "quantile without the bounds of the buckets"),
    "W810": Rule("error", "quantile of something else than buckets"),
    "W811": Rule("error", "bound that is no bucket"),
    "W812": Rule("error", "series that the metric does not have"),
    "W813": Rule("note", "query that cannot be parsed"),
    "W814": Rule("note", "queries without a parser"),
    "W815": Rule("error", "selector that matches nothing on the server"),
    "W816": Rule("warning", "autoscaler that may ask for a removed metric"),
    "W817": Rule("note", "removed metric that the router exports"),
    "W818": Rule("error", "value that the metric never has"),
    "W819": Rule("warning", "metric that needs an option"),
}
"""Codes, which never get another meaning."""
HIDDEN_METRICS_OPTION = "--show-hidden-metrics-for-version"
MAX_MESSAGE = 1_000
"""Characters of a message, which can quote a word of any length."""


def finding(code: str, place: Place, message: str, *, fix: str = "") -> Finding:
    """Returns a finding with the severity of its code; the middle of a long message is left out."""
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
    return Finding(
        code=code,
        severity=RULES[code].severity,
        file=place.file,
        line=place.line,
        column=place.column,
        message=message,
        fix=fix,
    )
