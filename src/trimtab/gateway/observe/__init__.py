"""What is seen of the gateway: metrics, receipts of decisions, logs, spans."""
