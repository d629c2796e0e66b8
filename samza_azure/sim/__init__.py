"""The system in simulated time: production's processors and rules, a faulty network, and a judge.

Promised: the same seed gives the same history. What must always hold is checked by what the storage has accepted, after
each step, and a violation names its invariant (`ledger.INVARIANTS`, docs/invariants.md).

Not promised: anything about Spark or about Azure. The container is a small one of its own, the storage keeps to what
Azure documents. tests/README.md says which tests look at the real ones.

Start reading at `world.World`, then `ledger.Ledger`; `samza-azure simulate --seed 8` prints a history.
"""
