"""The HTTP gateway: the host loop in front of real inference backends. Needs the extra `serve`."""
