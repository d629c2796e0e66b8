"""What a real account says; see README.md here."""
