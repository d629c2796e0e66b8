"""A fuzzer of pipelines: draws one, runs it as a fleet does, compares its rows with a batch, shrinks what is wrong."""
