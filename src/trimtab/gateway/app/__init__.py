"""The gateway as a whole: assembled from its configuration, started, reloaded, drained and stopped."""
