"""The JVM and the session: how they start, what they are set to, and what is reached there by private names."""
