"""What a query may be: the gate, its dialects and its refusals."""
