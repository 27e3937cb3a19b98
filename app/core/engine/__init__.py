"""The engine: admits and queues requests, runs sequences, and emits each token when due."""
