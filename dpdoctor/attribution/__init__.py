"""Trace -> Digest: where the time of one rank went, on its devices and on its host. numpy only."""
