"""How Sphinx builds the site: sphinx-build -W docs build/site (extra `docs`)."""

project = "dpdoctor"
author = "dpdoctor contributors"
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "dpdoctor"
