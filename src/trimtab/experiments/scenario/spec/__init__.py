"""The schema of scenario files: validated, frozen configuration."""
