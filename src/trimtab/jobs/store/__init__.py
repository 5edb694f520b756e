"""The database of jobs, SQLite or PostgreSQL, with its migrations."""
