"""The coordination for programs of your own: job coordinators, shared tasks, elector, membership, locks, guards.

Promised: the protocol of `samza_azure.group` without Spark. A leader, an owner and the holder of a lock each have a
number that only rises, to fence their writes: epoch, generation, token.

Not promised: that nobody else acts at the same time. A write to another system must carry that number, and that system
must refuse it if it has seen a higher one. Listeners run on threads of the library and must not block them.

Start reading at `shared_tasks.SharedTasks` or examples/library/three.py; the types are in `samza_azure.coordinator`.
"""
