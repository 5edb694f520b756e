"""Side-by-side measurements of speed and memory, saved and comparable: `python -m bench`.

One file per benchmark; each yields figures. What is compared in a ratio is measured in turns in one process,
and checked to be the same work.
"""
