"""The demo: a pulse of real traffic through Forebay and beside it; ledger, figures, picture. Starts its own stack,
writes to the output folder. May import kafka, engine and stack."""
