"""Compilation with numba: kernels, tables of addresses, function pointers, the cache. No scheduling."""
