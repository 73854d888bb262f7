"""``python -m eroica``."""

from eroica.cli import main

main()
