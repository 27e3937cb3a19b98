"""Texts that a context-free grammar derives: GBNF, Lark's EBNF, and vLLM's structural tags."""
