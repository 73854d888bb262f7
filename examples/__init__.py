"""Small training jobs with real faults, for ``eroica demo``; each folder is one job."""
