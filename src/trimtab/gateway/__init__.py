"""The HTTP gateway: runs policies in front of real inference backends. Needs the extra `serve`."""
