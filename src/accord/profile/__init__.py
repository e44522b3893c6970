"""Where the time of a run goes, what the machine could do, and which rewrite or kernel makes a result wrong."""
