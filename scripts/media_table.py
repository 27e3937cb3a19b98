"""Adds the media rules of models to the table of models.

    $ python -m scripts.media_table

Only models whose rules differ from those of their architecture (`app/extensions/media`) are listed.
The facts are those of the models' `config.json` and `preprocessor_config.json`.
"""

import json
from typing import Any

from vllm_facts.models import FILE

PIXTRAL = {"rule": "side_grid", "patch_size": 16, "longest_side": 1024}
IMAGES: dict[str, dict[str, Any]] = {
    "HuggingFaceTB/SmolVLM-256M-Instruct": {
        "rule": "split_image",
        "longest_side": 2048,
        "tile_size": 512,
        "tile_tokens": 64,
    },
    "microsoft/Phi-3-vision-128k-instruct": {"rule": "padded_crops", "num_crops": 16},
    "mistral-community/pixtral-12b": PIXTRAL,
    "nm-testing/pixtral-12b-FP8-dynamic": PIXTRAL,
    "openbmb/MiniCPM-Llama3-V-2_5": {
        "rule": "sliced_image",
        "image_feature_size": 96,
        "id_tokens": 0,
        "grid_marks": 2,
    },
}
"""Rules for images by model."""
TARGETS = {
    "mistral-community/pixtral-12b": {"image": "[IMG]"},
    "nm-testing/pixtral-12b-FP8-dynamic": {"image": "[IMG]"},
}
"""Placeholders of chat templates by model."""
LIMITS = {"openbmb/MiniCPM-Llama3-V-2_5": {"image": None}}
"""Maximum items of a prompt by model."""


def add_media(table: dict[str, dict[str, Any]]) -> None:
    """Adds the rules to rows of the table; models that the table lacks are left out."""
    for name, row in table.items():
        row.pop("media", None)
        if name in IMAGES:
            row["media"] = {"image": IMAGES[name]}
        if name in TARGETS:
            row["media"]["targets"] = TARGETS[name]
        if name in LIMITS:
            row["media"]["limits"] = LIMITS[name]


def write(table: dict[str, dict[str, Any]]) -> None:
    """Writes the table, a model a line."""
    rows = [
        f"{json.dumps(name)}:{json.dumps(table[name], separators=(',', ':'), sort_keys=True)}"
        for name in sorted(table, key=str.lower)
    ]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")


if __name__ == "__main__":
    models = json.loads(FILE.read_bytes())
    add_media(models)
    write(models)
