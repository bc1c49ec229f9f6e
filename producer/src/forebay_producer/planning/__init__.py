"""`forebay plan`: engines, workers, partitions and bounds for a load; how long what waits takes.

Pure: figures in, figures out. Imports nothing of this package. Any thread.
"""
