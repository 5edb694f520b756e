"""What clients say and hear: paths, bodies, errors, streams, usage. Pure functions of bytes, without I/O."""
