"""Changes of each release of vLLM to chats, completions and tokenization."""
