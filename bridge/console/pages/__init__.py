"""The pages, one file each: what a request shows or does. `bridge.console.routes` says who may ask."""
