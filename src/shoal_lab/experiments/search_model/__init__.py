"""A vectorised model of search, for sizes that the event simulator cannot reach.

Begin with `study.py`. The rules are those of the protocol; what is left out is time. A circle is
drawn as it is once joins are over, walks end where long ones do, messages of one hop are handled
together, and all nodes measure in step.
"""
