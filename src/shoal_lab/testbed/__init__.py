"""What experiments take place in, whatever they measure: virtual time, links with delay, network
namespaces with loss, child processes. Begin with `simulated.py` or `child_process.py`. Must not
know any protocol, nor what a scenario asks beyond its clock.
"""
