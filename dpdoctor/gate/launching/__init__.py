"""Launches of two checkouts by turns."""
