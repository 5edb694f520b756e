"""Traffic as a trace, and what a shadow policy would have done: figures that never touch a request."""
