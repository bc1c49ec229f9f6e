"""One request on its way: its work, its end, its controls, and what follows a failure.

Pure. May import partition. The event loop; intakes make the work.
"""
