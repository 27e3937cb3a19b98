"""The index of KV blocks over many pods: who has how much of a prompt in its cache.

Reads the event streams of vLLM and SGLang, keeps what each pod holds, and scores pods for a prompt. Knows
neither the simulator nor HTTP.
"""
