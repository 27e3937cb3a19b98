"""Wire structs of requests and answers, with vLLM's rules and their errors."""
