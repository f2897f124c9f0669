"""The pipeline: runs of the lab and streams as Spark DataFrames.

Nothing here is imported by `import shoal`, and pyspark only by the modules that need it.
"""
