"""The loader that fed the training: what it took, what other settings of it would take, and which to set."""
