"""Rules that are not one operator's own, the manager that applies them, and the ordered phases."""
