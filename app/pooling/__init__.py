"""What a pooling model would compute: vectors, class probabilities and scores, all functions of texts."""
