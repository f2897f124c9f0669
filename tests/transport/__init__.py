"""Tests of shoal.transport."""
