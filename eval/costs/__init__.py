"""What a model costs: operations, parameters, memory and measured speed."""
