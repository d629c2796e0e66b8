"""Azure Storage, translated. The only folder that imports azure; no decision is taken here."""
