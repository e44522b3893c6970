"""From a declared kernel to something that runs; one file a kind, imported when a kernel of that kind is first used."""
