"""What a model that computes says, by its parts: thoughts, tool calls, and the reply's own text."""
