"""What the service thinks of a mail: inspection of its bytes, engines, lists, and the decision."""
