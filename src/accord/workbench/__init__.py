"""For authors of operators: what proves a kernel against its contract, measures it, guards and documents it."""
