"""The engine that all hosts share: decisions, queues, residency, transfers, failures, telemetry.

`loop.advance` is the only event loop. The simulator runs it on virtual time. Live hosts feed it their events.
"""
