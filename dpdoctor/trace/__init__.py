"""Kineto traces: found, decompressed, cut into slices, decoded, and laid out as columns. numpy and msgspec only."""
