"""Backends that run stages: in threads, in processes; one file or folder for each outside system."""
