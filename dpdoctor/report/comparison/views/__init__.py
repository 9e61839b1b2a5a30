"""One file per section of the page of a comparison; each offers `VIEW`."""
