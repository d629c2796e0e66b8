"""Who leads, who is alive, who runs what, and how a run ends. Pure: no clock, no dice, no input or output.

A processor calls `decide` each turn with its `View`, everything that it knows, and gets back actions. What they bring
is learned into the view, and the next turn decides from scratch.

Promised: the same view and time give the same actions. Each action that writes carries the fence for which it was
decided, an ETag or the lease id, so an action that comes too late is refused by the storage and does no harm. Nothing
safe rests on time: time only says when to try.

Not promised: that one processor at a time believes that it leads, or that a task has one owner at each moment. Only
what they write is kept apart, here by ETags and in the logs by positions.

Start reading at `decide.decide`, then `control` (what the group agrees on) and `lead.next_control` (how it changes).
"""
