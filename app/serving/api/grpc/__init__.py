"""vLLM's gRPC service, `vllm.grpc.engine.VllmEngine`, and the services that clients expect beside
it.
"""
