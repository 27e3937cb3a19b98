vllm serve BAAI/bge-m3 --runner pooling --convert embed
