"""A capture as one page of HTML: the page as plain data, its figures, and how both become text.

Nothing here needs torch, and nothing in the page leads out of it.
"""
