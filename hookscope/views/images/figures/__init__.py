"""The files that draw with matplotlib: plain arrays in, a figure out. Nothing else imports it."""
