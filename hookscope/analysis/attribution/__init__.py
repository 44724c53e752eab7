"""Attribution of a score to the tokens of the input (``hookscope attribute``)."""
