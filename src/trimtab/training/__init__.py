"""Training jobs: performance models, allocators (one file each), and the loop that runs them on a trace."""
