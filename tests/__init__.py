"""Tests. A package, so that no library's own `tests` folder can stand in for it."""
