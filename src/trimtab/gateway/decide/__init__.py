"""The decisions of the gateway: requests in, nodes out. Start with `dispatcher.py`."""
