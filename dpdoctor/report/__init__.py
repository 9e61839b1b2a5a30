"""From a Diagnosis to what people read: a page, a terminal summary."""
