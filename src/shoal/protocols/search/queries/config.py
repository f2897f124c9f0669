"""Every bound of queries and documents, with its reason."""

from __future__ import annotations

from shoal.base.units import KIB, MIB

QUERY_CHARS_MAX = 1024  # what people type, and what a node stores for a stranger
QUERY_DEPTH_MAX = 8  # parentheses in parentheses: parsing and matching go as deep
QUERY_TERMS_MAX = 64  # words and comparisons: each costs time in every index that is asked
QUERY_PREFIXES_MAX = 4  # words with *: as dear as all the words that begin so

DOCUMENT_BYTES_MAX = 64 * KIB  # of a payload: it travels to hundreds of nodes
KIND_CHARS_MAX = 64  # stream, topic, event, document, or what applications add

# Of a document, only so much is looked at; what lies beyond cannot be found. Documents come from
# strangers, so these hold whatever their payload was.
DOCUMENT_DEPTH_MAX = 16  # objects and lists inside each other
DOCUMENT_VALUES_MAX = 1024  # objects and lists included
DOCUMENT_CHARS_MAX = 64 * KIB  # of all texts together
DOCUMENT_WORDS_MAX = 8192  # of all texts together: normalisation makes 18 letters of one character
PATH_CHARS_MAX = 256  # of a field, with all that it lies in
WORD_CHARS_MAX = 128  # the rest of a longer word is cut off, in queries as well; a hash has fewer

# Unicode's stream-safe format (UAX 15) lets so many marks follow a letter. Sorting them takes time
# with the square of their number: 64 Ki of them, 5 s.
MARKS_MAX = 30

INDEX_BYTES_MAX = 64 * MIB  # of one index, unless its owner says otherwise
