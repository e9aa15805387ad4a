"""The wire contract between bridge and service, as data. Of `bridge`, it imports only `runtime.value`."""
