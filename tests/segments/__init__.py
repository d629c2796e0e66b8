"""Segments: the conformance cases by their names, the rule that judges, and histories at random."""
