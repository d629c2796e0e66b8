"""Who leads, who is alive, who runs what, who ends when: what one processor does next. Pure: no clock, no dice, no I/O.

Each processor runs the same loop (`host/processor.py`): `learn` takes the answers, `decide` returns the next actions,
the host performs them. Nothing here waits, so the simulator and the model checker run the same functions.

Promised, if Azure's ETags and leases work as documented:

- Every change of the control blob is based on the previous value: two leaders never overwrite each other.
- A task has one owner per version, and an owner starts it only after the earlier ones have released it, are dead, or
  have had their time; the log's own fence (`logs/`) holds even then.
- A processor that writes heartbeats is not marked dead for silence: a mark carries the ETag of the silent row.
- FLUSH is written once per drain, and names no end below what a task has read.
- A processor ends its work before its row, and its row before its lease, unless others have its tasks already.

Not promised: that a leader knows that it was deposed (its next write is refused); that all processors know the same at
the same time; any time bound while the storage does not answer. Time only decides when to try; safety does not depend
on it.

Start reading at `decide`, which is the order of the questions; each question has one file:

    decide        in which order the questions are asked
    membership    who is a member, and who is alive
    bells         what follows from the hints that other processors give over connections
    election      who leads, who leads next, and when a leader steps down (refusals: learn.demote)
    publish       what the leader publishes: the complete next control blob
    next_run      which run it is, and who may begin the next
    drain         when a drain moves on
    requests      which requests are obeyed, and with what answer
    containers    whose tasks move because a container has ended or hangs
    replicas      which processors keep replicas of which tasks
    warm_up       which tasks wait until their next owner has a copy of their state
    history       which events people are shown
    housekeeping  what is answered, forgotten and deleted
    tasks         what the container must do
    decommission  what a processor that will go hands over, in which order, until when
    ending        whether this processor ends, and what it waits for
    recovery      what a group goes on with whose control blob was lost

    view          what one processor knows          learn     how that changes
    actions       what a processor can do           answers   what the storage can answer
    control       the control blob                  rows      the table's rows
    notification  a drain, in Samza's form          notice    that a processor will go
    reports       whose report on a task counts
    assign        who gets which task               age       how long a row was unchanged
    moment        what time it is, and when to ask again
    timing        durations that several questions share                     shape     values from JSON
"""
