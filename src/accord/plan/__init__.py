"""The frozen plan: steps, slots, memory. The executor decides nothing that is not written here."""
