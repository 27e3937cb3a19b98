"""Costs of models on GPUs: data sheets of devices, shapes of models, kernels, and memory."""
