"""vLLM's gRPC service, `vllm.grpc.engine.VllmEngine`, with health and reflection."""
