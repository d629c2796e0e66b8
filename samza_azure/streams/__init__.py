"""What a task may read next, and how event time moves. Pure: no clock, no dice, no I/O, nothing of Spark.

Promised: offset, watermark and frontier are functions of what the logs hold and of the offset before, so a replay and a
restore come to the same values. The watermark is the least progress of all producers.

Not promised: that a window fires soon. Whoever is silent holds it back until a live owner has said that it is idle.

Start reading at `offset.Offset`, then `pace.next_offset` and `watermark.next_watermark_us`; docs/event-time.md has the
reasons.
"""
