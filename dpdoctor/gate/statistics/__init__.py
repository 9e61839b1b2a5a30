"""How paired launches are judged, and what so many of them can tell."""
