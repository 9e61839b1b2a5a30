"""A comparison of runs for people: a page, a terminal summary, markdown. All take their words from the same places."""
