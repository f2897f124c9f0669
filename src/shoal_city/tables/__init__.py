"""What Spark makes of the vehicles' messages, history and live by the same code.

Begin with `vehicle_tables.py`.
"""
