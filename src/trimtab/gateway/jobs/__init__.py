"""Long jobs: durable from the answer 202 to the result, dispatched like any other request."""
