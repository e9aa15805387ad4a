"""The dialects that scanners speak, one module each."""
