"""GET /openapi.json, made from the structs of the protocol, and GET /, which says what this is."""
