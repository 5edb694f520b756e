"""The control plane: the admin port with its API, `/metrics` and the dashboard. Uses aiohttp."""
