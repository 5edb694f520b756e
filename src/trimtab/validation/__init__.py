"""The common base of settings files: frozen models, YAML without surprises, errors in the user's words."""
