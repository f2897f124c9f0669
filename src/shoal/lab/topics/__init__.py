"""Durable topics in the lab: a workload like the published one, networks, figures."""
