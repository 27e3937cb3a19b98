"""The table of vLLM's releases: which CPU build, torch and packages each of them needs.

Most releases share their torch and nearly all of their packages with a later one. They are
installed over its environment: their own environment has vLLM and what differs, about 500 MB, and
finds everything else there. One complete environment takes 3 GB.

A release that is not in the table is installed alone, from the newest CPU build up to it.
"""

from fidelity.oracle.build import Build, Edit

OF_2025 = (
    "fastapi==0.136.3",
    "openai==2.8.1",
    "prometheus-fastapi-instrumentator==8.1.0",
    "pydantic==2.12.4",
    "starlette==1.10.0",
    "transformers==4.57.1",
)
"""What 0.32 is compared with, and other packages of November 2025: later ones lack names."""
WITHOUT_COMPILER = {"TORCHDYNAMO_DISABLE": "1"}
"""These releases compile a part of the sampler at the first request, which takes minutes."""

BUILDS = {
    build.version: build
    for build in (
        # No CPU build: its Python files replace those of 0.32.0.
        Build("0.33.0", torch="2.13.0", over="0.32.0"),
        Build("0.32.0", torch="2.13.0"),
        Build("0.31.0", torch="2.13.0", over="0.32.0"),
        Build("0.30.0", torch="2.13.0", over="0.32.0"),
        Build("0.29.0", torch="2.13.0", over="0.32.0"),
        Build("0.28.0", torch="2.13.0", over="0.32.0"),
        Build("0.27.1", torch="2.13.0", over="0.32.0"),
        Build("0.26.0", torch="2.11.0"),
        Build("0.25.1", torch="2.11.0", over="0.26.0"),
        Build("0.24.0", torch="2.11.0", over="0.26.0"),
        Build("0.23.0", torch="2.11.0", over="0.26.0"),
        Build("0.22.1", torch="2.11.0", over="0.26.0"),
        Build("0.21.0", torch="2.11.0", over="0.26.0"),
        # It logs the cores of each thread, also if none are bound. Its metadata allows versions of
        # xgrammar that came later.
        Build(
            "0.20.2",
            torch="2.11.0",
            over="0.26.0",
            packages=("xgrammar==0.2.0",),
            edits=(
                Edit("vllm/utils/ompmultiprocessing.py", "{self.cpu_lists[i]}", "{self.cpu_lists}"),
            ),
        ),
        # It does not run with transformers 5, and its metadata does not name all packages.
        Build(
            "0.19.1",
            torch="2.10.0",
            packages=("transformers<5", "gguf", "diskcache", "pycountry"),
        ),
        # Later packages of OpenAI's client add fields to its responses.
        Build(
            "0.15.1",
            torch="2.10.0",
            over="0.19.1",
            packages=("transformers<5", "openai==2.16.0"),
        ),
        Build(
            "0.11.2",
            torch="2.8.0",
            newer_symbols=("CXXABI_1.3.15",),
            packages=OF_2025,
            variables=WITHOUT_COMPILER,
        ),
        # Its own compiled parts require the build of torch 2.6.
        Build(
            "0.10.2",
            torch="2.8.0",
            over="0.11.2",
            compiled="0.11.0",
            packages=(*OF_2025, "intel_extension_for_pytorch==2.8.0"),
            variables={**WITHOUT_COMPILER, "VLLM_CPU_OMP_THREADS_BIND": "all"},
        ),
    )
}


def build_of(version: str) -> Build:
    """Returns the line of the table for a release, which may be missing."""
    return BUILDS.get(version, Build(version))
