"""From a node to a generated kernel, one file a family. Each registers its operators in ``table.TABLE``."""
