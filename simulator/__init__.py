"""The system in simulated time: the production processors and rules, a faulty network, and checks of the invariants.

Promised: the same seed gives the same history. After each step, the invariants are checked against what the storage
has accepted; a violation names its invariant (`ledger.INVARIANTS`, docs/invariants.md).

Not promised: anything about Spark or Azure. The container is a small substitute, the storage behaves as Azure
documents. tests/README.md says which tests use the real ones.

Start reading at `world.World`, which plays a scenario: `processors.Processors` with `faults.Faults`. Then read
`ledger.Ledger`; `python -m simulator --seed 8` prints a history.
"""
