"""What answers a chat on the default settings, and the contract of the extensions."""
