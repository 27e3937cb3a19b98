"""Exchanges of providers' own APIs in the form of an API that vLLM serves.

Start with `translators.translator_of`. The readers of OpenAI's and Anthropic's exchanges then make
the rules.
"""
