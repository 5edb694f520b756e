"""What every host does alike, written once: decisions, queues, residency, transfers, failures, telemetry.

`loop.advance` is the one loop; the simulator lets it run on virtual time, live hosts feed it what happened.
"""
