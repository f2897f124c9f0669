"""Queries of tests are interpreted: to compile one takes longer than to run it over some thousand
rows. As users have it, they are compiled in test_against_duckdb.py."""

from __future__ import annotations

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # To plan the rest of a query again after every stage takes longer than the stage.
    "spark.sql.adaptive.enabled": "false",
}
COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
}
