"""The entry points of public images with vLLM, which images.json has with their sources.

Start reading at `read_image`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

FILE = Path(__file__).with_name("images.json")
PROJECT = "vllm"
"""Part of the name of each image that is taken for one with vLLM."""
COPIES = frozenset(("vllm-openai", "vllm-openai-rocm", "vllm-openai-cpu", "vllm-openai-xpu"))
"""Names of vLLM's images in registries of others, which are mostly copies."""
MAX_LENGTH = 1_000
_VARIABLE = re.compile(r"\$\{[^{}]*\}|\$\(?\w+\)?|\{\{[^{}]*\}\}")
_IMAGE = re.compile(
    r"(?P<path>(?:[\w.-]+(?::\d+)?/)*)(?P<name>[\w.-]+)(?P<tagged>:(?P<tag>[\w.-]*))?(?:@.*)?"
)


class EntryPoint(Struct, frozen=True, kw_only=True):
    """The entry point of a public image."""

    starts_server: bool
    """The arguments of a container are options of vLLM's server, and not a program."""
    source: str


class Image(NamedTuple):
    """The name of an image with vLLM, as far as it is known."""

    owner: str
    """Part in front of the name, such as vllm in docker.io/vllm/vllm-openai; may be empty."""
    name: str
    tag: str
    """Tag; `latest` without one, and empty if it is a variable."""
    starts_server: bool | None
    """None if the entry point is not known."""

    @property
    def is_of_vllm_project(self) -> bool:
        """Returns whether vLLM publishes the image; other images add to vLLM."""
        return self.owner == PROJECT

    @property
    def is_copy(self) -> bool:
        """Returns whether an image of another owner has a name of vLLM's images."""
        return self.name in COPIES

    @property
    def is_other_build(self) -> bool:
        """Returns whether the image is neither vLLM's nor named like it."""
        return not (self.is_of_vllm_project or self.is_copy)


@cache
def entry_points() -> dict[str, EntryPoint]:
    """Returns the known entry points, by the last two parts of the names of images."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, EntryPoint])


def read_image(text: str) -> Image | None:
    """Returns the parts of an image's name; None if the name does not contain vllm."""
    if PROJECT not in text or len(text) > MAX_LENGTH:
        return None
    match = _IMAGE.fullmatch(_VARIABLE.sub("", text).lstrip("/"))
    if match is None or PROJECT not in match["name"]:
        return None
    owner = match["path"].rstrip("/").rpartition("/")[2]
    known = entry_points().get(f"{owner}/{match['name']}")
    return Image(
        owner=owner,
        name=match["name"],
        tag=match["tag"] or ("" if match["tagged"] else "latest"),
        starts_server=None if known is None else known.starts_server,
    )
