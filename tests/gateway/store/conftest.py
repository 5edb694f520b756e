from support.gateway_stores import postgres, store_url

__all__ = ["postgres", "store_url"]
