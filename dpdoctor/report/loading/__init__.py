"""The charts of the loader's section."""
