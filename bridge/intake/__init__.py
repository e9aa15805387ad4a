"""Where mail comes in. Each protocol builds a transaction and renders the filter's reply."""
