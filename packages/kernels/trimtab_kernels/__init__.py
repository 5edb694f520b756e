"""Machine code of kernels, which `trimtab.compiled.kernel_cache` copies into an empty cache."""
