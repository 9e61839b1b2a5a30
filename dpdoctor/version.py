"""The package's version, which setup.py reads as text."""

__version__ = "0.1.0"
