"""A fuzzer of pipelines: draw one, run it as a fleet does, compare its rows with one Spark batch, shrink what is wrong."""
