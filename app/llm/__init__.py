"""A small LLM engine for CPUs (and CUDA and MPS, as far as torch goes), on the scheduler of the simulation.

Optional: it needs requirements-engine.txt, and nothing outside of this folder imports it.

    from app.llm.llm import LLM
    from app.llm.sampling_params import SamplingParams
"""
