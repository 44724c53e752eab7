"""Named small models that many tests share, with inputs and with facts that ``test_facts`` checks.

A model, with weights that the test has seeded or that do not matter::

    from tests.zoo import Module, Skip, twice

    net = Skip(width=8)
    net = twice()
    net = Module(lambda self, x: self.inner(x) * 2, inner=nn.Linear(4, 4))

A specimen, in eval mode, with the same weights and inputs each time::

    from tests.zoo import ZOO, names, total

    net, inputs = ZOO["skip"].model(), ZOO["skip"].inputs()
    net(*inputs)                                     # or ZOO["skip"].run(net)
    ZOO["skip"].calls                                # ('linear',)

Each specimen that some facts (``Specimen``) are true of::

    @pytest.mark.parametrize("name", names(trains=True, random=False, raises=None))

``total(output)`` is a loss on whatever a model returns. Importing this imports torch alone, and
builds nothing. The name of a specimen is that of its function or class: ``in_place``, ``InPlace``
is ``"in place"``.
"""
# ruff: noqa: F401, F403

from tests.zoo.networks import *
from tests.zoo.specimen import ZOO, Module, Specimen, names, tensors_in, total
from tests.zoo.states import *
from tests.zoo.structures import *
