"""Computes the steps of GGUF models with llama.cpp, in place of torch.

The engine's scheduler composes each batch, and llama.cpp computes it in one call. Start with
`runner`. Only `binding` knows the library's C interface.
"""
