"""A workload over durable topics.

Begin with `experiment.py`.
"""
