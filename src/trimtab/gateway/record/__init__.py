"""Recording of traffic as a trace. It never affects a request."""
