"""One rank's columns -> its patterns (beta, mu, sigma)."""
