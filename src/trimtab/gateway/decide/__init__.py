"""The deciding side of the gateway: the host loop of `runtime/desk.py`, asked by exchanges."""
