"""Compares our verdicts on JSON Schemas with those of a real vLLM (`make judge-schemas`)."""
