"""What charts are made of: plain dictionaries, as plotly.js reads them."""
