"""Performance models: seconds of work that was never measured, predicted from what was."""
