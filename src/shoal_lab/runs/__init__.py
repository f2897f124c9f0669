"""From a scenario to stored runs: `plan.py` (grid and seeds), `sweep.py` (which are missing), a
place (`places.py` and its two other implementations), `runner.py` (one run), `run_files.py` (its
folder). `run_frames.py` reads folders back as DataFrames. Begin with `plan.py`. Must not import
experiments: kinds are found by name.
"""
