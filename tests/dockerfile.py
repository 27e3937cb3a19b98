"""Dockerfile and .dockerignore without a container engine: the build context, and the image in a folder.

An image is laid out as Docker would build it, step by step and stage by stage, but below a folder that stands
for its root: absolute paths of the image are moved there. Programs of the base image are this machine's,
and what `apt-get` would install is left out.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.running_server import ROOT


def copied_context(target: Path) -> Path:
    """`target`, into which the build context was laid out: our .dockerignore names what is sent."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"]
    assert lines.pop(0) == "*"
    ignored = shutil.ignore_patterns(*(line.removeprefix("**/") for line in lines if line[0] != "!"))
    for name in [line[1:] for line in lines if line[0] == "!"]:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, target / name)
    return target


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a Dockerfile, with its flags (--from=...) apart."""

    name: str
    flags: tuple[str, ...]
    words: tuple[str, ...]
    text: str
    """All behind the name, as it is written."""


def steps(dockerfile: str) -> list[Step]:
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", dockerfile))
    read = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        text = line.partition(" ")[2].strip()
        name, *words = shlex.split(line)
        flags = tuple(word for word in words if word.startswith("--")) if name == "COPY" else ()
        read.append(Step(name.upper(), flags, tuple(word for word in words if word not in flags), text))
    return read


OUR_PLACES = re.compile(r"(?<![\w./])/(?=(?:venv|srv|build|usr/local/bin)\b)")
"""Where absolute paths of the image begin that a step may write below."""


OF_UV = {name: text for name, text in os.environ.items() if name.startswith(("UV_", "SSL_", "HOME"))}
OF_UV |= {"UV_COMPILE_BYTECODE": "1", "UV_LINK_MODE": "copy"}
"""What uv needs to find packages where we do."""


@dataclass(slots=True)
class Stage:
    """One stage of the build, below `root`."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    folder: Path = Path("/")
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def moved(self, text: str) -> str:
        """`text` with the image's absolute paths below `root`."""
        return OUR_PLACES.sub(f"{self.root}/", text)

    def within(self, path: str) -> Path:
        """Where a path of the image is here."""
        return self.root / str(self.folder / path).lstrip("/")

    def environment(self) -> dict[str, str]:
        """What its programs find: nothing of our own environment but where programs are."""
        python = Path(sys.executable).parent
        return {"PATH": f"{python}:{os.environ['PATH']}"} | self.env

    def run(self, command: str) -> None:
        """A RUN step. CalledProcessError when it fails."""
        if "apt-get" in command:
            return
        # uv does in seconds what pip takes a minute for, and from its cache.
        uv = rf"{Path(sys.executable).parent}/uv pip \2install -q --python \1"
        command = re.sub(r"\bpip --python (\S+) (un)?install(?: --yes)?", uv, command)
        subprocess.run(
            ["/bin/sh", "-ec", self.moved(command)],
            cwd=self.within("."),
            env=self.environment() | OF_UV,
            check=True,
            capture_output=True,
        )


def lay_out(folder: Path, context: Path, dockerfile: str) -> Stage:
    """The last stage of the image that `dockerfile` builds from `context`, below `folder`."""
    stages: dict[str, Stage] = {}
    for step in steps(dockerfile):
        if step.name == "FROM":
            name = step.words[-1] if "AS" in step.words else str(len(stages))
            stage = stages[name] = Stage(folder / name)
            stage.root.mkdir(parents=True)
            (stage.root / "usr" / "local" / "bin").mkdir(parents=True)
        elif step.name == "ENV":
            for word in step.words:
                variable, _, text = word.partition("=")
                stage.env[variable] = stage.moved(text.replace("$PATH", stage.environment()["PATH"]))
        elif step.name == "WORKDIR":
            stage.folder = Path(step.words[0])
            stage.within(".").mkdir(parents=True, exist_ok=True)
        elif step.name == "COPY":
            _copy(step, stage, stages, context)
        elif step.name == "RUN":
            stage.run(step.text)
        elif step.name == "HEALTHCHECK":
            stage.health = json.loads(step.text.partition("CMD")[2])
        elif step.name in ("ENTRYPOINT", "CMD"):
            setattr(stage, step.name.lower().replace("cmd", "command"), json.loads(step.text))
    return stage


def _copy(step: Step, stage: Stage, stages: dict[str, Stage], context: Path) -> None:
    other = next((flag.removeprefix("--from=") for flag in step.flags if flag.startswith("--from=")), None)
    *sources, target = step.words
    for source in sources:
        found = context / source if other is None else stages[other].within(source)
        place = stage.within(target)
        if found.is_dir():
            shutil.copytree(found, place, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(found, place / found.name if place.is_dir() else place)
