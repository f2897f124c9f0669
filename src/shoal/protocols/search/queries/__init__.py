"""Queries over JSON documents: the language, what it matches, and an index that finds it fast.

query, canonical, building  what a query is, its one text, and how parts become one
tokens, parser              from what people type to a query
words, documents            what text and documents look like to a query
matching                    whether a document matches: the definition, also for standing queries
postings, numbers, index    the same answer for many documents, without reading them all
footprint                   what documents take in an index
ranking, hits               which of them first

The language is explained in docs/search-queries.md.
"""
