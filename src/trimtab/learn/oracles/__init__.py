"""Small queueing problems whose optimum is known exactly: what a method of learning is measured against."""
