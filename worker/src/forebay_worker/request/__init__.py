"""One request on its way: its work, how it ended, what is wanted of it, and what follows a failure.

Pure. May import partition. The event loop; intakes make the work.
"""
