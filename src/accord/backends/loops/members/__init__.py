"""How operators become loops, one file a family; importing a file registers its operators."""
