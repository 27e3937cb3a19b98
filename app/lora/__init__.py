"""LoRA adapters: which are known, and which are resident."""
