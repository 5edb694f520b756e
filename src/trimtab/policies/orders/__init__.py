"""Orders: by which key waiting work is served."""
