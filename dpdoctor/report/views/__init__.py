"""One file per section of the page; each offers `VIEW`."""
