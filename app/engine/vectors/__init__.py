"""The simulated pooling model: vectors, class probabilities and scores, all functions of texts."""
