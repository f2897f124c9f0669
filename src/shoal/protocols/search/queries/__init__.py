"""The query language over JSON documents.

Begin with `query.py`, what a query is, and `parser.py`, its text. `matching.py` says whether a
document matches, `index.py` finds matches fast. It knows `config.py` and nothing else of search.
"""
