"""The pipeline that somebody wrote: loaded, analysed stage by stage, and refused where its rows would be wrong.

Promised: a stage that is accepted puts out what one Spark batch over the same rows would, on any number of tasks.
Not promised: that a Python function that claims to be deterministic is.
Start reading at `analysis.analyse`; keys are traced in `placement`, event time in `bounds`, completeness in `emission`.
"""
