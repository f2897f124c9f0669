"""What an experiment runs: a TOML file with network, workload, faults and options.

Begin with `scenario.py`. `experiment_kinds.py` lists the experiments and what each takes and gives;
it loads one only when a scenario names it. Must not import experiments.
"""
