"""Compares our verdicts on JSON Schemas with those of a real vLLM (`fidelity.judge_schemas`)."""
