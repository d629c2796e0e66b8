"""The coordination for programs of your own: job coordinators, shared tasks, elector, membership and locks.

Promised: the protocol of `samza_azure.group` without Spark. What a leader, an owner or a holder of a lock does can be
fenced by a number that only rises: epoch, generation, token.

Not promised: that nobody else acts at the same time. Whatever is written elsewhere must carry that number, and be
refused there if a higher one was seen before. Listeners run on threads of the library and must not block them.

Start reading at `shared_tasks.SharedTasks` or examples/library/three.py; the types are in `samza_azure.coordinator`.
"""
