"""Dashboards, rules and autoscalers, and the metrics of vLLM that they ask for."""
