"""The bytes of HTTP: client connections, connections to nodes, and the relay between them."""
