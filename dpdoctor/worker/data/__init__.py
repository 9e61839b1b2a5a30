"""The script's loaders: how batches are shared out over ranks, and what is noted of them."""
