"""`forebay plan`: engines, workers, partitions and bounds for a load, and the waits. Pure: figures in, figures out. May
import errors alone. Any thread."""
