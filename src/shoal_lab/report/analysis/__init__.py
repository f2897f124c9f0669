"""The numbers of a report, computed from a folder of runs with Spark.

Begin with `collect.py`. It knows no HTML.
"""
