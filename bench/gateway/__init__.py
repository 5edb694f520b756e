"""The gateway beside other proxies: one core for the proxy, load and mock backends on another."""
