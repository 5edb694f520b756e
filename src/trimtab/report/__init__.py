"""Results for people: tables in the terminal, interactive figures, one page that opens offline, notebooks."""
