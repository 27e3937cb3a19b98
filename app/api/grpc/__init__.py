"""vLLM's gRPC service, `vllm.grpc.engine.VllmEngine`, and what clients expect beside it."""
