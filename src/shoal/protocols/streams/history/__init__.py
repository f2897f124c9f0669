"""History of streams: what storage nodes keep, and how everybody else gets at it.

Storage nodes answer questions, one page each, and remember nobody: whoever reads asks for the next
page when it has room for it, so a slow reader costs a storage node nothing, and a read that one
storage node cannot finish goes on at another, where the last page ended.
"""
