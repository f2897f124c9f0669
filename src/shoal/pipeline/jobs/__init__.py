"""Jobs: read a folder of runs, transform, and collect what is small enough for a page."""
