"""The programs of users, one for each engine, each as the engine's own documentation writes such work.

Each has `connected(address)`, which yields what the others take; `images(on, files)`: pairs of
near-duplicates; `paced(on, chains)`: the sum of each chain; `nothing(on, count)`: so many tasks without work.
"""
