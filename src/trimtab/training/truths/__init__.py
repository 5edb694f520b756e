"""How fast jobs really run: tables, replays, stepped runs. Only the loop knows; allocators see estimates."""
