"""What the gateway knows of its backends: who they are, whether they get work, how busy they say they are."""
