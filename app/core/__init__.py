"""The contract of the extensions; the parts that answer a chat on the default settings follow."""
