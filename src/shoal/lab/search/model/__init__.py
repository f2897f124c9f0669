"""A vectorised model of search, for sizes that the event simulator cannot reach.

The rules are those of the protocol; what is left out is time. A circle is drawn as it is once joins
are over, walks end where long ones do, messages of one hop are handled together, and all nodes
measure in step. In the order of a study: circle.py and repair.py make networks, graph.py has their
edges, cast.py sends bubbles through them, matching.py sees which met, gossip.py measures, study.py
does it all before and after something happened, and experiment.py is the lab's kind.
"""
