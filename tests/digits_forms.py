"""The forms of the digits model that the installed torch can open."""

from hookscope.tensors.torch_internals import export_reader

FORMS = ["digits.py:trained", "digits_scripted.pt"]
if export_reader() is not None:  # older releases have another layout of exported programs
    FORMS.append("digits_exported.pt2")
