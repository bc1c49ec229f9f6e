"""`forebay plan`: engines, workers, partitions and bounds for a load; how long what waits takes.

Pure: figures in, figures out. May import errors alone. Any thread.
"""
