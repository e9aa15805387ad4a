"""The scanning service: both HTTP interfaces, the analysis queue, the analyzers and the list store.

A program of its own that the bridge reaches only over HTTP. It imports the wire contract
(`bridge.api`), the vocabulary of a mail (`bridge.mail`) and the small leaves beside them.
"""
