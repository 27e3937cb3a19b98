"""Compares our prompts with those of a real vLLM, template by template (`fidelity.judge_templates`)."""
