"""What several allocators share: mechanisms, plans, packing. A module here defines no allocator."""
