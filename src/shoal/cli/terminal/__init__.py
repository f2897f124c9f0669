"""How the command line shows things: progress, lines of output, the end of a process.

What a program reads goes to standard output, what people read to standard error.
"""
