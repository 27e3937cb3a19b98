"""The objects of deploy/helm, made by helm where that is installed, else by the few words that it
uses.
"""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import yaml

from tests import yaml_text
from tests.running_server import ROOT

CHART = ROOT / "deploy" / "helm"
RELEASE = "release"
WITH = re.compile(r"\s*\{\{- with (\S+) \}\}(.*?)\s*\{\{- end \}\}", re.DOTALL)
TAG = re.compile(r"(\s*)\{\{(-?) (.*?) \}\}")


def objects() -> list[dict[str, Any]]:
    """All objects of a release with the values that the chart brings."""
    if helm := shutil.which("helm"):
        command = [helm, "template", RELEASE, str(CHART)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    else:
        text = "\n---\n".join(
            rendered(file.read_text()) for file in sorted(CHART.glob("templates/*.yaml"))
        )
    return [document for document in yaml_text.documents(text) if document]


def rendered(template: str, values: Mapping[str, Any] | None = None) -> str:
    """A template with `values`, or with those of the chart.

    ValueError for a function that is not known.
    """
    chosen = yaml_text.document((CHART / "values.yaml").read_text()) if values is None else values
    scope = {"Values": chosen, "Release": {"Name": RELEASE}}

    def block(match: re.Match[str]) -> str:
        value = _value(match[1], scope)
        return _filled(match[2], scope | {"": value}) if value else ""

    return _filled(WITH.sub(block, template), scope)


def _filled(text: str, scope: Mapping[str, Any]) -> str:
    return TAG.sub(
        lambda match: ("" if match[2] else match[1]) + _expression(match[3], scope), text
    )


def _expression(text: str, scope: Mapping[str, Any]) -> str:
    path, *functions = text.split(" | ")
    value = _value(path, scope)
    for function in functions:
        name, _, argument = function.partition(" ")
        if name == "toYaml":
            value = yaml.safe_dump(value).rstrip()
        elif name == "nindent":
            value = "".join(f"\n{' ' * int(argument)}{line}" for line in value.splitlines())
        elif name == "sha256sum":
            value = hashlib.sha256(value.encode()).hexdigest()
        else:
            raise ValueError(f"a function that is not known here: {function}")
    return str(value)


def _value(path: str, scope: Mapping[str, Any]) -> Any:
    value: Any = scope
    for name in path.split(".")[1:]:
        value = value[name]
    return value
