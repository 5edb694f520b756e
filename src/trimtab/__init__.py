"""trimtab schedules AI work: which node serves each request, and how balanced and fast that was."""

__version__ = "0.1.0"
