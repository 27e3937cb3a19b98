"""Tokenizers: text to token ids and back, conversations to prompts.

`huggingface.load_tokenizer` returns one of three kinds behind the interface of `base.Tokenizer`:
the embedded default, a `tokenizer.json` from a folder or the hub, or a remote vLLM render service.
"""
