"""The index of KV blocks over many pods: how much of a prompt each pod has in its cache.

Reads the event streams of vLLM and SGLang, keeps what each pod holds, and scores pods for a prompt. Knows
neither the simulator nor HTTP.
"""
