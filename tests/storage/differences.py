"""Where Azurite does not do what Azure documents: the one list, each with the document that decides.

The storage in memory does as documented, so each comparison with Azurite uses this list. A real account has no list:
what is found there belongs into `samza_azure.storage.memory`, and into the protocol if it matters.
"""

from dataclasses import dataclass, field

#: What a call came to that was not refused.
DONE = "done"


@dataclass(frozen=True, slots=True)
class Difference:
    """One call in one state of the lease, answered in two ways: "done", or Azure's code for the refusal.

    A is who leased last, B anybody else.
    """

    call: str
    state: str
    documented: str
    azurite: str
    decided_by: str = field(default="", compare=False)


_RENEW = "REST reference, Lease Blob: the lease id must match, even of a lease that has expired"
_RANGE = "REST reference, Blob service error codes: InvalidRange, 416; a range that begins at the end has no byte"
_LOST = "REST reference, Blob service error codes: LeaseLost, the lease for the blob has expired"

#: Azurite 3.37.0.
AZURITE = (
    # LeaseExpiredState.renew does not look at the id, and the former holder has the lease again.
    Difference("renew B", "expired", "LeaseIdMismatchWithLeaseOperation", DONE, _RENEW),
    # An empty 206, whose Content-Range promises bytes; only further on is it 416.
    Difference("read", "from the very end", "416 InvalidRange", DONE, _RANGE),
    # One refusal for another, both 412: BlobReadLeaseValidator and BlobWriteLeaseValidator know one word for both.
    Difference("read with A", "expired", "LeaseLost", "LeaseNotPresentWithBlobOperation", _LOST),
    Difference("read with B", "expired", "LeaseLost", "LeaseNotPresentWithBlobOperation", _LOST),
    Difference("write with A", "expired", "LeaseLost", "LeaseNotPresentWithBlobOperation", _LOST),
    Difference("write with B", "expired", "LeaseLost", "LeaseNotPresentWithBlobOperation", _LOST),
)
