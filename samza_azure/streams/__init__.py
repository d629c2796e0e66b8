"""What a task may read next, and how event time moves. Pure: no clock, no random numbers, no I/O, no Spark.

Promised: offset, watermark and frontier are functions of the logs and of the previous offset, so a replay and a restore
compute the same values. The watermark is the least progress of all producers.

Not promised: that a window fires soon. A silent task holds it back until its live owner has reported it as
idle, a silent source partition for `idle.timeout` (`idleness.after_silence`).

Start reading at `offset.Offset`, then `pace.next_offset`, `watermark.next_watermark_us` and `gate.next_gate`;
docs/event-time.md has the reasons.
"""
