"""The wire contract between bridge and service, as data. Imports nothing else of `bridge` but `runtime.value`."""
