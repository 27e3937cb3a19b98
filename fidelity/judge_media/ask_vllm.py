"""Asks a real vLLM for the tokens of images; runs in the environment of `fidelity.oracle`.

    .oracle/0.32.0/environment/bin/python fidelity/judge_media/ask_vllm.py questions.json answers

The first file is ``[[model, folder, modality, prompt, [[width, height, arguments], ...]], ...]``.
The arguments of a film are its frames and frames per second.
Each line of the second is ``[model, width, height, arguments, length, embeddings]``, with an error
in place of the numbers of an item that vLLM rejects. No weights are needed: the script calls the
processor of vLLM's server, which reads the configurations in the folder.
"""

import json
import sys
from pathlib import Path
from typing import Any


def define_operators() -> None:
    """Defines what torchvision's package registers at its import.

    Its compiled part belongs to the build of torch for GPUs, and is not needed.
    """
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["library"] = library  # a library that is collected takes its operators with it


def spare_videos(info: Any) -> None:
    """Lets InternVL's processor of videos get none of the arguments of images.

    vLLM passes them all, and the class rejects them: only the processor of images is compared.
    """
    if type(info).__name__ == "InternVLProcessingInfo":
        make_processor = info.get_video_processor
        info.get_video_processor = lambda **arguments: make_processor()


def tokens_of(
    processor: Any, modality: str, prompt: list[int], size: tuple[int, int], arguments: Any
) -> Any:
    """Returns the tokens of an item, and how many the encoder computes."""
    import numpy
    from PIL import Image
    from vllm.multimodal.processing import ProcessorInputs, TimingContext

    item: Any = numpy.zeros(size[0], dtype="float32")
    if modality == "image":
        item = Image.new("RGB", size)
    elif modality == "video":
        arguments = dict(arguments)
        frames = arguments.pop("frames")
        item = film(processor, size, frames=frames, fps=arguments.pop("fps"))
    items = processor.info.parse_mm_data({modality: [item]})
    inputs = ProcessorInputs(
        prompt=prompt,
        mm_data_items=items,
        mm_uuid_items=None,
        hf_processor_mm_kwargs=arguments,
    )
    [place] = processor.apply(inputs, TimingContext())["mm_placeholders"][modality]
    return place.length, place.get_num_embeds()


def film(processor: Any, size: tuple[int, int], *, frames: int, fps: float) -> Any:
    """Returns the frames that vLLM's server samples of a film, and what it notes about them."""
    import numpy
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY
    from vllm.multimodal.video_decoders.base import VideoSourceMetadata, VideoTargetMetadata

    hf_processor = processor.info.get_hf_processor()
    kind = type(getattr(hf_processor, "video_processor", None)).__name__
    name = VIDEO_LOADER_REGISTRY.get_backend_for_video_processor(kind)
    loader = VIDEO_LOADER_REGISTRY.load(name or "opencv")
    source = VideoSourceMetadata(frames, fps, frames / fps)
    target = VideoTargetMetadata(num_frames=32, fps=2 if name else -1, max_duration=300)
    indices = loader.compute_frames_index_to_sample(source, target)
    metadata = {
        "total_num_frames": frames,
        "fps": fps,
        "duration": frames / fps,
        "video_backend": name or "opencv",
        "frames_indices": indices,
        "do_sample_frames": False,
    }
    return numpy.zeros((len(indices), size[1], size[0], 3), dtype="uint8"), metadata


def main(questions: Path, answers: Path) -> None:
    """Answers all questions."""
    define_operators()
    from vllm.config import ModelConfig
    from vllm.model_executor.models import registry
    from vllm.multimodal import MULTIMODAL_REGISTRY

    registry._run_in_subprocess = lambda function: function()
    with answers.open("w") as file:
        for model, folder, modality, target, images in json.loads(questions.read_text()):
            try:
                config = ModelConfig(
                    model=folder,
                    tokenizer=folder,
                    dtype="float32",
                    max_model_len=100_000,
                    trust_remote_code=True,
                )
                processor = MULTIMODAL_REGISTRY.create_processor(config)
                spare_videos(processor.info)
                prompt = processor.info.get_tokenizer().encode(target, add_special_tokens=False)
            except Exception as error:
                import traceback

                traceback.print_exc()
                file.write(json.dumps([model, 0, 0, {}, f"{type(error).__name__}: {error}"]) + "\n")
                continue
            for width, height, arguments in images:
                line: list[Any] = [model, width, height, arguments]
                try:
                    line += tokens_of(processor, modality, prompt, (width, height), arguments)
                except Exception as error:  # vLLM's processors raise errors of many kinds
                    line.append(f"{type(error).__name__}: {error} {error.__cause__}")
                file.write(json.dumps(line) + "\n")
                file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
