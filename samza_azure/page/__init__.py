"""The status page: what the account says of a fleet, in a browser, whether the fleet lives or not.

It reads the control blob and the members' rows, once a heartbeat and only while somebody looks; it writes nothing. No
configuration and no secret is on it, and of data only what an error says: its first line, cut short, may quote a value.
"""
