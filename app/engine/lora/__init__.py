"""LoRA adapters: loaded, resident and running ones."""
