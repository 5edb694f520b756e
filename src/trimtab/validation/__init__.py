"""What files of settings share: frozen models, YAML without surprises, and errors in the user's words."""
