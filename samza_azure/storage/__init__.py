"""Azure Storage, translated. The only package that imports azure; no decision is taken here.

Promised: an answer is a value (`Refused`, `Missing`), an error says whose fault it is, and what may have happened is
never called a failure (`Unsettled`). One call is one request: the SDK's retries are off. `memory` keeps the same
contract, and the same tests hold it to that.

Not promised: that a call returns soon. Whoever calls gives it a timeout, or a permit that ends.

Start reading at `interface`, then `answers` (what an answer means) and `log` (logs over a storage).
"""
