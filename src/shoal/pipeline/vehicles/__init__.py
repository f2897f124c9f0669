"""City vehicles: a fleet that is made up, and what Spark makes of its messages.

    for message in Fleet(FleetSettings(duration_s=60)).messages():     # fleet.py: no Spark needed
        ...
    tables = vehicle_tables(source, Rules())                           # tables.py: history or live

Begin with tables.py; each of its lines is a module here. docs/tutorial-vehicles.md walks through.
"""
