from support.databases import postgres, store_url

__all__ = ["postgres", "store_url"]
