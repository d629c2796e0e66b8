"""What processors need from their machine: its clocks, memory, folders, and processes that end together.

Promised: `clock.boot_time` runs on while the machine sleeps, and is the same for all its processes.

Not promised: anything on other systems than Linux; use the container image there.

Start reading at `processes`, which ties supervisor and container together; `memory` chooses Java's heap.
"""
