"""The lab: scenarios in, figures and verdicts out."""
