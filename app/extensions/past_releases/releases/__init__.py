"""What each release of vLLM changed in chats, completions and tokenization."""
