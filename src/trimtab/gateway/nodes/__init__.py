"""The nodes behind the gateway: where they are, whether they are healthy, and the load that they report."""
