"""Code of processors that models bring along, written from facts for `models.py`.

It makes no pixels: vLLM computes the tokens from the attributes of a processor, and from the texts
of MiniCPM's. The grid of slices is that of transformers' processor of a later MiniCPM.
"""

MOLMO = """
import json
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import PretrainedConfig
from transformers.processing_utils import ProcessorMixin
from vllm.model_executor.models.molmo import MolmoProcessingInfo


class MolmoConfig(PretrainedConfig):
    model_type = "molmo"


class MolmoProcessor(ProcessorMixin):
    def __init__(self, image_processor, tokenizer):
        self.image_processor = image_processor
        self.tokenizer = tokenizer

    @classmethod
    def from_pretrained(cls, folder, tokenizer=None, **arguments):
        values = json.loads((Path(folder) / "preprocessor_config.json").read_text())
        return cls(SimpleNamespace(**values), tokenizer)

    def get_tokens_input(self, text, **arguments):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def process(self, images=None, tokens=(), **arguments):
        if images is None:
            return {"input_ids": torch.tensor([self.tokenizer.bos_token_id, *tokens])}
        info = object.__new__(MolmoProcessingInfo)
        crops = 0
        for image in images:
            width, height = image.size
            columns, rows = info.select_tiling(
                image_width=width, image_height=height, image_processor=self.image_processor
            )
            crops += int(rows * columns) + 1
        return {
            "input_ids": torch.zeros(1, dtype=torch.long),
            "images": torch.zeros(crops, 1, 1),
            "image_masks": torch.zeros(crops, 1),
            "image_input_idx": torch.zeros(crops, 1, dtype=torch.long),
        }
"""
MINICPM = """
import torch
from transformers import PretrainedConfig, Qwen2Config
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
    MiniCPMV4_6ImageProcessorPil,
)
from transformers.processing_utils import ProcessorMixin


class MiniCPMVConfig(Qwen2Config):
    model_type = "minicpmv"

    def __init__(self, vision_config=None, **values):
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        super().__init__(**values)


class MiniCPMVProcessor(ProcessorMixin):
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    @classmethod
    def from_pretrained(cls, folder, tokenizer=None, **arguments):
        return cls(tokenizer)


class MiniCPMVImageProcessor(BaseImageProcessor):
    def __init__(self, **values):
        super().__init__(**values)
        self.max_slice_nums = values["max_slice_nums"]
        self.scale_resolution = values["scale_resolution"]
        self.image_feature_size = values["image_feature_size"]
        self.is_old = values["version"] < 2.6

    def preprocess(self, images, **arguments):
        groups = images if self.takes_groups(images) else [images]
        sizes = [[self.size_of(image) for image in group] for group in groups]
        return BatchFeature(
            {
                "pixel_values": [[torch.zeros(1, 1, 1) for _ in group] for group in sizes],
                "image_sizes": sizes,
                "tgt_sizes": [torch.ones(len(group), 2, dtype=torch.long) for group in sizes],
            }
        )

    def takes_groups(self, images):
        return isinstance(images[0], list) or getattr(images[0], "ndim", 0) == 4

    def size_of(self, image):
        return image.shape[1::-1] if hasattr(image, "shape") else image.size

    def get_sliced_grid(self, image_size, max_slice_nums=None):
        width, height = image_size
        processor = object.__new__(MiniCPMV4_6ImageProcessorPil)
        return processor.get_sliced_grid(
            (height, width), max_slice_nums or self.max_slice_nums, self.scale_resolution
        )

    def get_slice_image_placeholder(
        self, image_size, image_idx=0, max_slice_nums=None, use_image_id=True
    ):
        patches = "<unk>" * self.image_feature_size
        whole = f"<image>{patches}</image>"
        one = whole if self.is_old else f"<slice>{patches}</slice>"
        rows, columns = self.get_sliced_grid(image_size, max_slice_nums) or (0, 0)
        slices = "\\n".join([one * columns] * rows)
        if self.is_old and slices:
            slices = f"<slice>{slices}</slice>"
        if use_image_id and not self.is_old:
            whole = f"<image_id>{image_idx}</image_id>{whole}"
        return whole + slices
"""
