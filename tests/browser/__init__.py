"""Pages in a real browser. A package, so that the one Chromium of its fixture ends with these tests."""
