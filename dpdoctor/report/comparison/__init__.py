"""A comparison of runs in words: its page takes them from here, and so do the terminal and Markdown."""
