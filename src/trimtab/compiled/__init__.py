"""What numba needs: kernels, tables of addresses, function pointers, the cache. Nothing of scheduling."""
