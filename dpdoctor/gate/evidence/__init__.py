"""What a gate knows of a run: what it measured, under what conditions, and whether two may be compared."""
