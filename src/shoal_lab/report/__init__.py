"""A folder of runs as a page.

`analysis/` computes a few numbers with Spark (`collect.py`), `sections/` make text, tables and
pictures of them beside `published.py`; `build.py` puts them together, `pages.py` writes them.
Sections know no Spark; analysis knows no HTML.
"""
