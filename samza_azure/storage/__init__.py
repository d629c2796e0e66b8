"""The adapter to Azure Storage. The only package that imports its SDK.

It makes no decisions about the group, its logs or its tables.

Promised: a refusal is returned as a value (`Refused`, `Missing`), an error says whose fault it is, and a write that may
have happened is never called a failure (`Unsettled`). One call is one request: the SDK's retries are off. `memory` has
the same contract, checked by the same tests.

Not promised: that a call returns soon. The caller sets a timeout, or has a permit that expires.

Start reading at `interface`, then `account_calls` (what an answer means).
"""
