"""Signed documents, and where they are kept.

Begin with `document.py`, a version of a document, and `document_store.py`, what this node keeps for
others. `durable_documents.py` has documents survive their owners. Only `own_documents.py` casts
bubbles.
"""
