"""The index of KV blocks over many pods: how much of a prompt each pod has in its cache.

The index reads the event streams of vLLM and SGLang, keeps the blocks of each pod, and scores pods
for a prompt. This package depends neither on the simulator nor on HTTP.
"""
