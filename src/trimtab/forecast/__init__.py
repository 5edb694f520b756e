"""Forecasts: history in, distribution out; in `queueing`, what a rate means for waits. Numbers, no files."""
