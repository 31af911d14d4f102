"""`python -m bench.claims`: each claim of the RKSC paper beside what is measured here."""
