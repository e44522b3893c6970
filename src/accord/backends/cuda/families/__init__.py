"""From a node to a kernel of the GPU's own, one file a family. Each registers its operators in ``table.TABLE``."""
