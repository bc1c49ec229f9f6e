"""The contract between Forebay's producers and workers."""
