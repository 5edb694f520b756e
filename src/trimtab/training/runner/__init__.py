"""Training jobs as real processes: an allocator decides, checkpoints carry jobs over changes."""
