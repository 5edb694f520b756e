"""What a restart must not lose, in SQLite or PostgreSQL: long jobs, and usage per tenant and day."""
