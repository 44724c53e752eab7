"""One or two captures as one page of HTML: the page as plain data, its figures, its template.

No module here needs torch. The page links to nothing outside itself.
"""
