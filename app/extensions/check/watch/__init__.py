"""What watches vLLM: dashboards, rules and autoscalers, and the metrics that they ask for."""
