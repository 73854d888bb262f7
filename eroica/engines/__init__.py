"""map(files) -> patterns on this machine's cores or on a cluster."""
