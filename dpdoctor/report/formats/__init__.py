"""The facts of the page's first screen elsewhere: in a terminal, as Markdown, in a notebook."""
