"""The scanning service: both HTTP interfaces, the analysis queue, the analyzers and the list store.

A separate program: the bridge reaches it only over HTTP. It imports the wire contract
(`bridge.api`), the data types of a mail (`bridge.mail`) and small modules that depend on nothing else.
"""
