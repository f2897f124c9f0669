"""Pure functions from DataFrames to DataFrames: no files, no session, no collecting.

counts = count_delays(deliveries)            # one pass over all rows
summarise_delays(counts)                     # the rest works on a few thousand rows a run
"""
