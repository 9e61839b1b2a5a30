"""From an Analysis to what people read: a page, a terminal summary."""
