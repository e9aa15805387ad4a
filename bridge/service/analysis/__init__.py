"""The analysis of a mail: inspection of its bytes, engines, lists, and the decision."""
