"""Who leads, who is alive, who runs what, who ends when: what one processor does next. Pure: no clock, no dice, no I/O.

Each processor runs the same loop (`host/processor.py`): what was answered goes into `learn`, `decide` says what to do
next, the host does it. Nothing here waits, so the simulator and the model checker run these very functions.

Promised, as long as Azure keeps its word on ETags and leases:

- Every change of the control blob follows from the value before: two leaders never write over each other.
- A task has one owner per version, and an owner starts it only after the earlier ones have let go, are dead, or have
  had their time; the log's own fence (`logs/`) holds even then.
- Nobody who shows life is marked dead: a mark carries the ETag of the row whose silence was measured.
- FLUSH is written once per drain, and names no end below what a task has read.
- A processor ends its work before its row, and its row before its lease.

Not promised: that a leader knows that it was deposed (its next write is refused); that all processors know the same at
the same time; any time bound while the storage does not answer. Time only decides when to try, and is never part of an
argument for safety.

Start reading at `decide`, which is the order of the questions; each question has one file:

    decide        in which order the questions are asked
    membership    who is a member, and who lives
    election      who leads, and who leads next
    publish       what the leader publishes: the next control blob, whole
    next_run      which run it is, and who may begin the next
    drain         when a drain moves on
    requests      what is obeyed and answered
    housekeeping  what is answered, forgotten and deleted
    tasks         what the container has to do
    ending        whether this processor ends, and what it waits for

    view          what one processor knows          learn     how that changes
    actions       what can be done to the world     answers   what may come back
    control       the control blob                  rows      the table's rows
    reports       whose word on a task counts
    assign        who gets which task               age       how long somebody was silent
    moment        what time it is, and when to ask again
    timing        all durations                     shape     values from JSON
"""
