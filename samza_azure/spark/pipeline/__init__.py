"""Load the user's pipeline, analyse it stage by stage, and refuse what would produce wrong rows.

Promised: an accepted stage emits what one Spark batch over the same rows would, on any number of tasks.
Not promised: that a Python function that is declared deterministic is.
Start reading at `analysis.analyse`; keys are traced in `placement`, event time in `bounds`, completeness in `checks`.
"""
