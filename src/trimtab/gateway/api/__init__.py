"""The clients' API: paths, bodies, errors, streams, usage. Pure functions of bytes, without I/O."""
