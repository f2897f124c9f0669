"""The sections of a report: text, tables, pictures.

No Spark here.
"""
